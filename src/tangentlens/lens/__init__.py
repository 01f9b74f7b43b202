"""The object people hold: sites, a schedule, proxies and alignment on a live model, into a run."""
