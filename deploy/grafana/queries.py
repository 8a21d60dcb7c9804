"""The PromQL of the panels: selections of one release, and the common forms of queries.

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
    """Return a selection; `labels` are further matchers."""
    return f"slipstream_{name}{{{scope}{', ' if labels else ''}{labels}}}"


def largest(name: str, labels: str = "", *, by: str = "", scope: str = SCOPE) -> str:
    """Return the largest value of a gauge over pods."""
    return f"max{_by(by)} ({metric(name, labels, scope=scope)})"


def total(name: str, labels: str = "", *, by: str = "", scope: str = SCOPE) -> str:
    """Return the sum of a gauge over pods."""
    return f"sum{_by(by)} ({metric(name, labels, scope=scope)})"


def rise(name: str, labels: str = "", *, by: str = "", over: str = STEPS, scope: str = SCOPE) -> str:
    """Return the sum of the increases of a counter within a time."""
    return f"sum{_by(by)} (increase({metric(name, labels, scope=scope)}[{over}]))"


def rate(name: str, labels: str = "", *, by: str = "", over: str = FLOW, scope: str = SCOPE) -> str:
    """Return the sum of the rates of a counter, in events a second."""
    return f"sum{_by(by)} (rate({metric(name, labels, scope=scope)}[{over}]))"


def mean(name: str, labels: str = "", *, by: str = "", over: str = FLOW, scope: str = SCOPE) -> str:
    """Return the mean of a histogram's observations."""
    total = rate(f"{name}_sum", labels, by=by, over=over, scope=scope)
    return f"{total} / {rate(f'{name}_count', labels, by=by, over=over, scope=scope)}"


def quantile(
    share: float, name: str, labels: str = "", *, by: str = "", over: str = FLOW, scope: str = SCOPE
) -> str:
    """Return a quantile of a histogram's observations, to the width of its buckets."""
    inside = rate(f"{name}_bucket", labels, by=f"le, {by}" if by else "le", over=over, scope=scope)
    return f"histogram_quantile({share:g}, {inside})"


def whole_quantile(share: float, name: str, *, over: str = FLOW, scope: str = SCOPE) -> str:
    """Return a quantile of whole numbers, without interpolation between two of them: the larger one."""
    return f"ceil({quantile(share, name, over=over, scope=scope)})"


def buckets(name: str, *, scope: str = SCOPE) -> str:
    """Return the increase of each bucket of a histogram since the point before: the cells of a heatmap."""
    return f"sum by (le) (increase({metric(f'{name}_bucket', scope=scope)}[{FLOW}]))"


def token_share(name: str, *, by: str) -> str:
    """Return the share of trained tokens that a counter counted; `by` may be `side` and labels of cells."""
    cells = ", ".join(label for label in by.split(", ") if label in CELLS)
    part = rate(name, by=by, over=STEPS)
    all_tokens = rate("tokens_trained_total", by=cells, over=STEPS)
    if "side" not in by:
        return f"{part} / {all_tokens}"
    return f"{part} / on ({cells}) group_left () {all_tokens}"


def token_mean(name: str, *, by: str) -> str:
    """Mean over cells of a gauge of the loss, weighted by their tokens; cells without tokens are NaN."""
    has_value = f"({metric(name)} > -Inf)"
    weights = metric("loss_tokens")
    on = f"on ({', '.join(CELLS)})"
    return f"sum{_by(by)} ({has_value} * {on} {weights}) / sum{_by(by)} ({weights} and {on} {has_value})"


def effective_share(name: str, *, by: str = "") -> str:
    """Effective sample size of the weights `name` as a share of the tokens, (sum x)^2 / (n sum x^2)."""
    tokens, squares = total("loss_tokens", by=by), total(f"{name}_squared_sum", by=by)
    return f"{total(f'{name}_sum', by=by)} ^ 2 / ({tokens} * {squares} > 0)"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
