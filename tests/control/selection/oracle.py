"""INFaaS' section 4.1 in plain loops, written from its text; shares no code with serfer.control.selection.

`select` returns reason, misses, variant and place with the share of draws that each takes, in the order of the draws:
the first is the paper's own choice, which a draw of 0 makes.

- A variant matches the requirements if its latency, its accuracy (the interval's lower end) and its dollars do.
- "getVariant first checks whether any variants in the Active state match": the cheapest, at "the least-loaded worker".
- "Otherwise [...] the variant with the lowest combined loading and inference latency that matches".
- Interfered and overloaded variants are avoided: the least loaded of them where none but them matches.
- Otherwise the variant with the closest accuracy, latency and dollars: the least sum of relative misses.
- Herds (docs/explanation/selection.md): of active variants each takes the share that it admits of what those before
  left; what is left at the end is divided among all that are loaded, by queries/s over load (half to one and a half),
  the least loaded first. Places of an active variant: by admitted share and 2 - load.
"""

ORDER = ("usd", "latency", "name")


def select(variants, states, asked):
    """Return [(reason, missed, variant, place, share)]; `states` has (place, state, load, admitted) by variant."""
    every = [facts(variant, states) for variant in variants]
    among = [one for one in every if asked.network in (None, one["network"])]
    if asked.variant is not None:
        one = next(one for one in every if one["name"] == asked.variant)
        return divide(one, best_places(one), 1.0, "NAMED", missed(one, asked, time_at(one)))
    matching = sorted((one for one in among if not missed(one, asked, one["latency"])), key=by_order)
    actives = [one for one in matching if one["active"]]
    if actives:
        takes, left = waterfall(actives)
        return takes + by_throughput([one for one in matching if one["loaded"]], left)
    soonest = None
    for one in matching:
        waits = one["latency"] + one["load"]
        if not one["inactive"] or (asked.latency_ms is not None and waits > asked.latency_ms):
            continue
        if soonest is None or waits < soonest["latency"] + soonest["load"]:
            soonest = one
    if soonest is not None:
        return divide(soonest, soonest["inactive"], 1.0, "INACTIVE")
    if any(one["loaded"] for one in matching):
        return by_throughput([one for one in matching if one["loaded"]])
    dearest = max(one["usd"] for one in every)
    able = [one for one in among if one["loaded"] or one["inactive"]] or among
    nearest = min(able, key=lambda one: (distance(one, asked, dearest), not free(one), by_order(one)))
    return divide(nearest, best_places(nearest), 1.0, "NEAREST", missed(nearest, asked, time_at(nearest)))


def facts(variant, states):
    one = {
        "name": variant.name,
        "network": variant.network,
        "latency": variant.latency_ms.value,
        "load": variant.load_ms.value,
        "accuracy": variant.accuracy.interval[0] if variant.accuracy else 0.0,
        "usd": variant.usd.value,
        "qps": variant.qps.value,
    }
    seen = states.get(variant.name) or ([("functions", "inactive", 0.0, 1.0)] if variant.place == "functions" else [])
    for kind in ("active", "inactive"):
        one[kind] = sorted((place for place in seen if place[1] == kind), key=lambda place: (place[2], place[0]))
    one["loaded"] = sorted((place for place in seen if place[1] != "inactive"), key=lambda place: (place[2], place[0]))
    return one


def by_order(one):
    return tuple(one[name] for name in ORDER)


def free(one):
    return bool(one["active"]) or not one["loaded"]


def best_places(one):
    return one["active"] or one["loaded"] or one["inactive"]


def time_at(one):
    return one["latency"] if one["loaded"] else one["latency"] + one["load"]


def missed(one, asked, time):
    found = {}
    if asked.latency_ms is not None and time > asked.latency_ms:
        found["latency_ms"] = time - asked.latency_ms
    if asked.min_accuracy is not None and one["accuracy"] < asked.min_accuracy:
        found["min_accuracy"] = asked.min_accuracy - one["accuracy"]
    if asked.max_cost_usd is not None and one["usd"] > asked.max_cost_usd:
        found["max_cost_usd"] = one["usd"] - asked.max_cost_usd
    return found


def distance(one, asked, dearest):
    total = 0.0
    for name, miss in missed(one, asked, time_at(one)).items():
        total += miss / (getattr(asked, name) or dearest)
    return total


def divide(one, places, share, reason, misses=None):
    weights = [weight(place, reason) for place in places]
    parts = [(place[0], share * mine / sum(weights)) for place, mine in zip(places, weights, strict=True)]
    return [(reason, misses or {}, one["name"], place, part) for place, part in parts or [("", share)]]


def weight(place, reason):
    _, state, load, admitted = place
    if reason in ("LOADED", "BUSY") or state not in ("active", "inactive"):
        return min(1.5, max(load, 0.5)) ** -0.5
    return max(0.05, 2 - load) * (admitted if state == "active" else 1)


def waterfall(actives):
    takes, left = [], 1.0
    for one in actives:
        admits = sum(place[3] for place in one["active"]) / len(one["active"])
        takes += divide(one, one["active"], left * admits, "ACTIVE")
        left -= left * admits
    return takes, left


def by_throughput(loaded, share=1.0):
    if share < 1e-15:
        return []
    loaded = sorted(loaded, key=lambda one: (one["loaded"][0][2], by_order(one)))
    weights = [one["qps"] * sum(weight(place, "LOADED") for place in one["loaded"]) for one in loaded]
    parts = []
    for one, mine in zip(loaded, weights, strict=True):
        for _, misses, name, place, part in divide(one, one["loaded"], share * mine / sum(weights), "LOADED"):
            parts.append(("ACTIVE" if one["active"] else "BUSY", misses, name, place, part))
    return parts
