"""The fault campaign: one deployment of real processes lives on, while a seeded schedule puts faults into it.

`make faults` runs it. A record's way is real from end to end: files that the campaign writes, Spark at every site,
sockets, a relay, the center, Delta tables. Links run through proxies of the campaign, which can harm them.

    feed.py       writes the records, and knows what every window must say
    living.py     the deployment: its folders, processes, links, status
    machines.py   one role as a process; processes that were left over
    byte_proxy.py, message_proxy.py   what a link can do to bytes, and to whole messages
    small_disks.py   a disk of some megabytes for some roles
    namespace.py  a network namespace for one site, with a cable that can be pulled or throttled
    verdict.py    compares what was published with a recomputation, and the counters with the records
    faults/       the kinds of faults
    schedule.py   which faults come together in a round, drawn from the seed
    campaign.py   the loop: inject, heal, wait for rest, judge, write down
    report.py     the table of docs/reliability.md
"""
