"""The states of a rollout, as slipstream.rollout.state names them, each with a colour."""

STATE_COLORS = {
    "starting": "#8F8F8F",
    "waiting_for_version": "#B877D9",
    "waiting_for_groups": "#FADE2A",
    "generating": "#56A64B",
    "updating": "#3274D9",
    "draining": "#FF780A",
}
