"""The cost model: what AWS charges and limits, what operators take, and what stages and plans cost."""
