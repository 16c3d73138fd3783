"""What happens at a site between a micro-batch and the outbox: partials are cached until a policy lets them leave.

`core.SiteCore` takes events in and gives messages out. It holds a `fragment.SiteFragment` for each fragment: a
`cache.PartialCache` of keys and states, and a `release.ReleaseGate` that asks a policy (`policies/`) which of them
leave before their slice is due. `slack/` decides how long a window waits for late records.
"""
