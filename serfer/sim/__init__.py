"""The router and the run machine under a virtual clock, with traces, prices and measured times."""
