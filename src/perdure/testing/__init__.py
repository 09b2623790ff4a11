"""What tests of durable workflows stand on: crashes at every commit, virtual time, effects that are counted.

Everything here is for tests; nothing that is shipped imports it.

    loop         a loop whose time is virtual, and which can shuffle what is ready
    dispatch     bodies on the loop, all of them
    process      an engine that can be killed at any moment, as a process can
    crashes      a store that dies, fails or is taken over at a chosen commit
    faults       a store whose n-th operation fails
    awaits       a coroutine that is disturbed at its n-th suspension
    ledger       the effects of bodies, kept outside of the database
    graphs       reference workflows and what they must come to
    world        all of these together: run a workflow through crashes, and judge what became of it
    simulation   several engines, in virtual time, with everything going wrong that can
"""
