"""Policies that decide which partials leave a site before their slice is due; `policy_by_name` knows them all."""
