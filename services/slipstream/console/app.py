"""The application of the console: a few JSON endpoints below /api, and the files of the page.

Every endpoint takes `run`, the name of a run; without it, the run that the console was opened with.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, cast
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware

from slipstream import __version__
from slipstream.algorithms.spec import CustomObjective
from slipstream.cluster.errors import ClusterError, ClusterUsageError
from slipstream.config import RunConfig
from slipstream.console import control
from slipstream.console.catalogue import METRICS, Catalogue, NoRun
from slipstream.console.lab_jobs import (
    Batch,
    Choice,
    LabBusy,
    LabFailed,
    LabJobs,
    check_objectives,
    stored_batch,
)
from slipstream.console.live import replay_stats
from slipstream.console.metric_rows import MOST_POINTS, columns
from slipstream.console.queries import (
    MOST_DOWNLOADED,
    TRUE,
    as_csv,
    as_json_lines,
    filter_of,
    whole_number,
)
from slipstream.console.run_view import RunView
from slipstream.console.scaling import Pools, ScaleOrder
from slipstream.console.tokens import packed
from slipstream.records.json_values import finite
from slipstream.rpc.control import ControlFailed
from slipstream.samples.reader import NoSamples, SampleReader

STATIC: Final = Path(__file__).parent / "static"
LEAST_COMPRESSED: Final = 2048
PAGE_ROWS: Final = 50
MOST_OPEN: Final = 8
MOST_KEYS: Final = 64
MOST_BARS: Final = 5000
PROBLEMS: Final[Mapping[type[Exception], int]] = {
    NoRun: 404,
    NoSamples: 404,
    LabFailed: 422,
    LabBusy: 429,
    control.NotPossible: 409,
    ControlFailed: 502,
    ClusterUsageError: 409,
    ClusterError: 502,
    ValueError: 422,
    OSError: 503,
}
"""Status of each error; the answer has its message."""


class Runs:
    """The runs that were opened."""

    def __init__(self, catalogue: Catalogue, pod: RunConfig | None = None) -> None:
        self.catalogue = catalogue
        self._pod = pod
        self._views: dict[str, RunView] = {}

    def view(self, name: str) -> RunView:
        """Return a run; an empty name is the first one. Errors: NoRun."""
        name = name or self.catalogue.first
        path = self.catalogue.directory(name)
        view = self._views.pop(name, None)
        if view is None or view.is_replaced:
            view = RunView(name, path, self._pod if name == self.catalogue.first else None)
        self._views[name] = view  # the one that was asked for last is the last to go
        while len(self._views) > MOST_OPEN:
            self._views.pop(next(iter(self._views)), None)
        return view

    async def read_first(self) -> None:
        """Read the rows of the first run, so that its first visitor waits for less."""
        with suppress(NoRun, OSError):
            view = self.view("")
            await asyncio.to_thread(lambda: view.history)

    async def close(self) -> None:
        """Close the connections of all runs."""
        for view in self._views.values():
            await view.close()


def make_app(
    catalogue: Catalogue,
    *,
    pod: RunConfig | None = None,
    config: Sequence[Path] = (),
    read_only: bool = False,
    pools: Pools | None = None,
    objectives: Sequence[str] = (),
) -> FastAPI:
    """Return the application over a catalogue of runs.

    `pod`: in a release, the configuration of the console's own pod, and `config`: its files. `read_only`:
    whether visitors may only look, which the application has as `state.read_only`. `pools`: those of the
    release, if visitors may scale them. `objectives`: functions, as `package.module:function`, that the loss
    lab may call beside that of the run itself.
    """
    runs, jobs = Runs(catalogue, pod), LabJobs(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reading = asyncio.create_task(runs.read_first())
        yield
        await reading
        await jobs.close()
        await runs.close()

    app = FastAPI(
        title="Slipstream console",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        default_response_class=Ascii,
    )
    app.state.read_only = read_only
    app.state.scales = pools is not None and not read_only
    app.add_middleware(GZipMiddleware, minimum_size=LEAST_COMPRESSED, compresslevel=1)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for problem, status in PROBLEMS.items():
        app.add_exception_handler(problem, _handler(status))
    _add_pages(app)
    _add_run(app, runs)
    _add_samples(app, runs)
    _add_timeline(app, runs)
    _add_control(app, runs)
    _add_scaling(app, pools)
    _add_lab(app, runs, jobs, tuple(objectives))
    return app


class Ascii(JSONResponse):
    """JSON whose texts are escaped, so that half of a surrogate pair can be sent."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _handler(status: int) -> Callable[[Request, Exception], JSONResponse]:
    def handle(_: Request, error: Exception) -> JSONResponse:
        return Ascii({"error": str(error)}, status_code=status)

    return handle


def _add_pages(app: FastAPI) -> None:
    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    @app.get("/startupz")
    @app.get("/livez")
    @app.get("/readyz")
    async def probe() -> Mapping[str, bool]:
        return {"ok": True}


def _add_run(app: FastAPI, runs: Runs) -> None:
    @app.get("/api/runs")
    def names() -> Mapping[str, Any]:
        listed = runs.catalogue.names()
        read_only: bool = app.state.read_only
        return {"first": runs.catalogue.first, "runs": listed, "version": __version__, "read_only": read_only}

    @app.get("/api/run")
    async def run(run: str = "") -> Mapping[str, Any]:
        view = runs.view(run)
        live = await view.live()
        replay = None if live is None else replay_stats(live)
        overview = await run_in_threadpool(view.overview, replay)
        may = {"read_only": app.state.read_only, "scales": app.state.scales and view.pod is not None}
        return {**overview, **may, "live": finite(live)}

    @app.get("/api/series")
    def series(keys: str, run: str = "", points: int = MOST_POINTS) -> Mapping[str, Any]:
        history = runs.view(run).history
        wanted = [key for key in keys.split(",") if key][:MOST_KEYS]
        return columns(history, wanted, points=max(2, min(points, MOST_POINTS)))

    @app.get("/api/metrics.csv")
    def metrics_csv(run: str = "") -> Response:
        view = runs.view(run)
        history = view.history
        values = columns(history, view.keys, points=None)
        rows = (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
        return _download(as_csv(rows), "text/csv", f"{view.path.name}-metrics.csv")

    @app.get("/api/metrics.jsonl")
    def metrics_jsonl(run: str = "") -> Response:
        view = runs.view(run)
        file = view.rows_dir / METRICS
        if not file.is_file():
            raise NoRun(f"{file}: there is no such file; a run makes it with its first row")
        return FileResponse(file, filename=f"{view.path.name}-metrics.jsonl")


def _add_samples(app: FastAPI, runs: Runs) -> None:
    @app.get("/api/samples/steps")
    def steps(run: str = "") -> Mapping[str, Any]:
        reader = runs.view(run).samples
        stored = [dict(row) for row in reader.steps()]
        return {"steps": finite(stored), "unreadable": reader.unreadable}

    @app.get("/api/samples")
    def samples(request: Request) -> Mapping[str, Any]:
        query = request.query_params
        reader = _reader(runs, query)
        page = reader.completions(
            filter_of(query),
            order=query.get("order") or "step",
            descending=query.get("descending") == TRUE,
            start=whole_number(query, "start", 0),
            count=whole_number(query, "count", PAGE_ROWS),
        )
        rows = finite([dict(row) for row in page.rows])
        return {"total": page.total, "rows": rows, "unreadable": reader.unreadable}

    @app.get("/api/sample")
    def sample(step: int, group: str, member: int, run: str = "") -> Mapping[str, Any]:
        reader = runs.view(run).samples
        row = reader.completion(step, group, member)
        if row is None:
            raise NoSamples(f"step {step} has no stored member {member} of group {group!r}")
        return packed(row, reader.token_texts(row["token_ids"]))

    @app.get("/api/samples.csv")
    def samples_csv(request: Request) -> Response:
        return _download(as_csv(_selected(runs, request.query_params)), "text/csv", "completions.csv")

    @app.get("/api/samples.jsonl")
    def samples_jsonl(request: Request) -> Response:
        lines = as_json_lines(_selected(runs, request.query_params))
        return _download(lines, "application/jsonl", "completions.jsonl")

    @app.get("/api/samples.parquet")
    def samples_parquet(request: Request) -> Response:
        where, reader = filter_of(request.query_params), _reader(runs, request.query_params)
        with NamedTemporaryFile(suffix=".parquet", delete=False) as file:
            target = Path(file.name)
        remove = BackgroundTask(target.unlink, missing_ok=True)
        try:
            reader.write_parquet(where, target, most=MOST_DOWNLOADED)
        except BaseException:
            target.unlink()
            raise
        return FileResponse(target, filename="completions.parquet", background=remove)


def _add_timeline(app: FastAPI, runs: Runs) -> None:
    @app.get("/api/timeline")
    def window(
        run: str = "", start: float | None = None, end: float | None = None, most: int = MOST_BARS
    ) -> Mapping[str, Any]:
        timeline = runs.view(run).timeline
        extent = timeline.extent()
        if extent is None:
            return {
                "first": None,
                "last": None,
                "start": 0,
                "end": 1,
                "bars": [],
                "spans": 0,
                "gap_seconds": 0,
                "unreadable": timeline.unreadable,
            }
        first, last = extent
        shown = timeline.window(
            first if start is None else start, last if end is None else end, most=max(1, min(most, MOST_BARS))
        )
        bounds = {"first": first, "last": last, "unreadable": timeline.unreadable}
        return {**bounds, **finite(asdict(shown))}

    @app.get("/api/timeline/group")
    def life(group: str, run: str = "") -> Mapping[str, Any]:
        stored = runs.view(run).timeline.group(group)
        if stored is None:
            raise NoSamples(f"group {group!r} is not stored")
        return cast(Mapping[str, Any], finite(asdict(stored)))


def _add_control(app: FastAPI, runs: Runs) -> None:
    @app.post("/api/control")
    async def act(order: control.Order) -> Mapping[str, str]:
        _refuse_if_read_only(app)
        return {"words": await control.carry_out(order, runs.view(order.run))}


def _refuse_if_read_only(app: FastAPI) -> None:
    if app.state.read_only:
        raise HTTPException(403, "visitors of this console may only look")


def _add_scaling(app: FastAPI, pools: Pools | None) -> None:
    """Add the endpoints of the pools. One request at a time: each asks the API server several times."""
    turn = asyncio.Lock()

    @app.get("/api/pools")
    async def read() -> Mapping[str, Any]:
        async with turn:
            return {"pools": await run_in_threadpool(_known(pools).read)}

    @app.post("/api/scale")
    async def scale(order: ScaleOrder) -> Mapping[str, str]:
        _refuse_if_read_only(app)
        async with turn:
            return {"words": await run_in_threadpool(_known(pools).scale, order)}


def _known(pools: Pools | None) -> Pools:
    """Return the pools. Errors: HTTPException if the console does not scale."""
    if pools is None:
        raise HTTPException(
            403, "this console scales no rollouts: that needs a release with console.allowScaling"
        )
    return pools


def _add_lab(app: FastAPI, runs: Runs, jobs: LabJobs, objectives: tuple[str, ...]) -> None:
    @app.get("/api/lab/objectives")
    def own() -> Mapping[str, Sequence[str]]:
        return {"objectives": objectives}

    @app.post("/api/lab")
    async def start(order: LabOrder) -> Mapping[str, bool]:
        view = runs.view(order.run)
        check_objectives(order.objectives, (*objectives, *await run_in_threadpool(own_objective, view)))
        choice = Choice(candidates=order.candidates, objectives=order.objectives)
        jobs.start(await run_in_threadpool(_batch, view, order.step), choice)
        return {"started": True}

    @app.get("/api/lab")
    async def lab(step: int, run: str = "", candidates: str = "", objectives: str = "") -> Mapping[str, Any]:
        batch = await run_in_threadpool(_batch, runs.view(run), step)
        choice = Choice(candidates=_names(candidates), objectives=_names(objectives))
        report = jobs.result(batch, choice)
        return {"begun": jobs.has_begun(batch, choice), "done": report is not None, "report": report}


def _names(listed: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name for name in listed.split(",") if name)


def own_objective(view: RunView) -> Sequence[str]:
    """Return the function that the run itself trains with, if it has one of the user."""
    config = view.config
    if config is None:
        return ()
    staleness, longest = config.staleness.max_staleness, config.rollout.max_new_tokens
    loss = config.algorithm.resolved_loss(max_staleness=staleness, max_new_tokens=longest)
    return (loss.objective.function,) if isinstance(loss.objective, CustomObjective) else ()


def _batch(view: RunView, step: int) -> Batch:
    """Return the batch of a step. Errors: NoSamples."""
    return stored_batch(view.rows_dir, view.samples, step)


class LabOrder(BaseModel):
    """The step whose losses a visitor asks for, and which of them; no candidates: all."""

    model_config = ConfigDict(extra="forbid")

    step: int
    run: str = ""
    candidates: tuple[str, ...] = Field(default=(), max_length=MOST_KEYS)
    objectives: tuple[str, ...] = Field(default=(), max_length=MOST_KEYS)


def _reader(runs: Runs, query: Mapping[str, str]) -> SampleReader:
    return runs.view(query.get("run", "")).samples


def _selected(runs: Runs, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Return the completions of a download. Errors: NoSamples, ValueError."""
    return _reader(runs, query).stream(
        filter_of(query),
        order=query.get("order") or "step",
        descending=query.get("descending") == TRUE,
        most=MOST_DOWNLOADED,
    )


def _download(lines: Iterator[str], kind: str, name: str) -> StreamingResponse:
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    return StreamingResponse(lines, media_type=f"{kind}; charset=utf-8", headers=headers)
