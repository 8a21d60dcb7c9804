"""PromQL as the panels need it: selections of one release, and the few shapes that queries come in.

Counters of the learner rise once a step, which may take minutes: their rates are over `$window`, a variable
of the dashboard that holds several steps. What flows all the time is over `$__rate_interval`.
"""

SCOPE = 'namespace="$namespace", release="$release"'
ROLLOUTS = f'{SCOPE}, component="rollout", pool=~"$pool", pod=~"$pod"'
ACTORS = f'{SCOPE}, component="actor"'
STEPS = "$window"
FLOW = "$__rate_interval"
CELLS = ("namespace", "pod", "staleness", "sign")
"""Labels of a metric of the loss: one cell for each age of a token and sign of its advantage."""


def metric(name: str, labels: str = "", *, scope: str = SCOPE) -> str:
    """A selection; `labels` are further matchers."""
    return f"slipstream_{name}{{{scope}{', ' if labels else ''}{labels}}}"


def largest(name: str, labels: str = "", *, by: str = "", scope: str = SCOPE) -> str:
    """A gauge that every pod of a kind shows alike, or of which the largest counts."""
    return f"max{_by(by)} ({metric(name, labels, scope=scope)})"


def total(name: str, labels: str = "", *, by: str = "", scope: str = SCOPE) -> str:
    """A gauge added up over pods."""
    return f"sum{_by(by)} ({metric(name, labels, scope=scope)})"


def rise(name: str, labels: str = "", *, by: str = "", over: str = STEPS, scope: str = SCOPE) -> str:
    """Events of a counter within a time, added up."""
    return f"sum{_by(by)} (increase({metric(name, labels, scope=scope)}[{over}]))"


def rate(name: str, labels: str = "", *, by: str = "", over: str = FLOW, scope: str = SCOPE) -> str:
    """Events a second of a counter, added up."""
    return f"sum{_by(by)} (rate({metric(name, labels, scope=scope)}[{over}]))"


def mean(name: str, labels: str = "", *, by: str = "", over: str = FLOW, scope: str = SCOPE) -> str:
    """Mean of a histogram's observations."""
    total = rate(f"{name}_sum", labels, by=by, over=over, scope=scope)
    return f"{total} / {rate(f'{name}_count', labels, by=by, over=over, scope=scope)}"


def quantile(
    share: float, name: str, labels: str = "", *, by: str = "", over: str = FLOW, scope: str = SCOPE
) -> str:
    """Quantile of a histogram's observations, to the width of its buckets."""
    inside = rate(f"{name}_bucket", labels, by=f"le, {by}" if by else "le", over=over, scope=scope)
    return f"histogram_quantile({share:g}, {inside})"


def whole_quantile(share: float, name: str, *, over: str = FLOW, scope: str = SCOPE) -> str:
    """Quantile of whole numbers: what interpolation finds between two of them is the larger one."""
    return f"ceil({quantile(share, name, over=over, scope=scope)})"


def buckets(name: str, labels: str = "", *, scope: str = SCOPE) -> str:
    """What fell into each bucket of a histogram since the point before: the cells of a heatmap."""
    return f"sum by (le) (increase({metric(f'{name}_bucket', labels, scope=scope)}[{FLOW}]))"


def token_share(name: str, labels: str = "", *, by: str = "") -> str:
    """Share of the trained tokens that a counter counted; `by` may be `side` and labels of cells."""
    cells = ", ".join(label for label in by.split(", ") if label in CELLS)
    part, whole = rate(name, labels, by=by, over=STEPS), rate("tokens_trained_total", by=cells, over=STEPS)
    if "side" not in by:
        return f"{part} / {whole}"
    return f"{part} / on ({cells}) group_left () {whole}"


def token_mean(name: str, *, by: str = "") -> str:
    """Mean over cells of a gauge of the loss, weighted by their tokens; cells without tokens are NaN."""
    known = f"({metric(name)} > -Inf)"
    weights = metric("loss_tokens")
    on = f"on ({', '.join(CELLS)})"
    return f"sum{_by(by)} ({known} * {on} {weights}) / sum{_by(by)} ({weights} and {on} {known})"


def effective_share(name: str, *, by: str = "") -> str:
    """Effective sample size of the weights `name` as a share of the tokens, (sum x)^2 / (n sum x^2)."""
    tokens, squares = total("loss_tokens", by=by), total(f"{name}_squared_sum", by=by)
    return f"{total(f'{name}_sum', by=by)} ^ 2 / ({tokens} * {squares} > 0)"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
