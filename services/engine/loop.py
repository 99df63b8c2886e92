"""The generation loop: a thread that reads prompts and steps the batches."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial

import structlog

from services.engine.domain.errors import EngineStoppedError
from services.engine.domain.outputs import Delta, Failed
from services.engine.domain.share import BackgroundShare
from services.engine.domain.work import Counters, Post, T, Work
from services.engine.lane import Lane
from services.engine.orders import Orders
from services.engine.runner import ModelRunner
from services.engine.settings import Settings

log = structlog.get_logger(__name__)


class PauseMode(Enum):
    """The effect of a pause on the requests in flight."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


@dataclass(eq=False)
class GenerationLoop:
    """Any thread may call its public methods: each queues an order for the loop's thread.

    `deliver` gets a step's events in order, on the loop's thread.
    """

    settings: Settings
    runner: ModelRunner
    users: Lane
    background: Lane
    counters: Counters
    deliver: Callable[[list[Post]], None]
    on_crash: Callable[[BaseException], None]

    def __post_init__(self) -> None:
        # Version of the base weights. Only orders change it, so it changes between two steps.
        settings = self.settings
        self.version = settings.weight_version
        self._share = BackgroundShare(settings.background_share, settings.background_linger_s)
        self._lanes = (self.users, self.background)
        self._orders = Orders()
        self._outbox: list[Post] = []
        self._pause: PauseMode | None = None
        self._drained: list[Future[None]] = []
        self._stopping = False
        self._read_next = True
        # The background unit in progress is charged up to here.
        self._charged_until = 0.0
        self._crash: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="generation-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after the step in progress; requests in flight fail."""
        if self.alive:
            self._orders.put(partial(setattr, self, "_stopping", True))
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """True if tokens can still be made."""
        return self._thread.is_alive() and not self._stopping

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return sum(lane.waiting for lane in self._lanes)

    def lane(self, *, background: bool) -> Lane:
        """The lane of background work, or that of users."""
        return self.background if background else self.users

    @property
    def running(self) -> int:
        """Choices in the batches."""
        return sum(len(lane.batch.rows) for lane in self._lanes)

    @property
    def cached_tokens(self) -> int:
        """Tokens in the batches' rows."""
        return sum(lane.batch.cached_tokens for lane in self._lanes)

    @property
    def paused(self) -> bool:
        """True if no step follows until `resume`."""
        return self._pause is not None and not self._drained

    def submit(self, work: Work) -> None:
        """Queue a request. Raises `EngineStoppedError`, as every order does."""
        self._orders.put(partial(self._submit, work), submission=True)

    def cancel(self, request_id: str) -> None:
        """Forget a request and deliver no more of it; unknown ids are ignored."""
        self._orders.put(lambda: self._cancel(request_id))

    def call(self, action: Callable[[], T]) -> "Future[T]":
        """Run `action` between two steps, also during a pause. Its error goes to the future."""
        return self._orders.call(action)

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Stop stepping. Done when no step will follow (`WAIT`: when running requests end)."""
        future: Future[None] = Future()
        self._orders.put(lambda: self._do_pause(mode, future))
        return future

    def resume(self) -> "Future[None]":
        return self.call(self._do_resume)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._tick()
        except Exception as error:  # noqa: BLE001  the top of the thread: the node ends with it
            self._crash = error
        self._stopping = True
        self._fail_everything()
        if self._crash is not None:
            log.error("generation_loop_crashed", exc_info=self._crash)
            self.on_crash(self._crash)

    def _tick(self) -> None:
        self._orders.take(self._idle_s())
        if self._stopping:
            return
        if self._pause in (None, PauseMode.WAIT):
            self._serve_users()
            self._flush()  # users' tokens do not wait for the background unit
            self._serve_background()
        if not any(lane.started for lane in self._lanes):
            self._settle_drained()
            self.runner.lora.rest()
        self._flush()

    def _idle_s(self) -> float | None:
        # 0 if there is work, None if only an order can bring some.
        admit = self._pause is None
        if not admit and not self._drained:
            return None
        if self._has_work(self.users, admit=admit):
            return 0.0
        if self._has_work(self.background, admit=admit):
            return self._share.wait_s(time.perf_counter())
        return None

    def _has_work(self, lane: Lane, *, admit: bool) -> bool:
        return bool(lane.batch.rows) or lane.can_read(admit=admit)

    def _serve_users(self) -> None:
        admit = self._pause is None
        if not self._has_work(self.users, admit=admit):
            return
        start = time.perf_counter()
        self._post(self.users.read(self.settings.prefill_chunk_tokens, self.version, admit=admit))
        self._post(self.users.step(self.version))
        self._share.users_worked(start, time.perf_counter())

    def _serve_background(self) -> None:
        # One unit, a chunk of a prompt or a step: users' requests come in between two units, and
        # between two layers of a unit.
        admit, start = self._pause is None, time.perf_counter()
        lane = self.background
        if not self._has_work(lane, admit=admit) or self._share.wait_s(start) > 0:
            return
        self._read_next = lane.can_read(admit=admit) and (self._read_next or not lane.batch.rows)
        self._charged_until = start
        with self.runner.interrupted_by(self._let_users_pass):
            if self._read_next:
                chunk = self._background_chunk(start)
                posts = lane.read(chunk, self.version, admit=admit)
            else:
                posts = lane.step(self.version)
        self._share.background_worked(self._charged_until, time.perf_counter())
        self._read_next = not self._read_next
        self._post(posts)
        if self._crash is not None:
            raise self._crash

    def _background_chunk(self, now: float) -> int:
        # A first user waits for one layer of the chunk at most; those who stay get short ones.
        settings = self.settings
        alone = not self._share.users_present(now)
        return settings.prefill_chunk_tokens if alone else settings.background_chunk_tokens

    def _let_users_pass(self) -> None:
        # Weights, rows and pauses stay as they are until the unit ends: only submissions are taken.
        if self._crash is not None:
            return
        self._share.background_worked(self._charged_until, time.perf_counter())
        try:
            while self._orders.take_submissions():
                wait_s = self._share.wait_s(time.perf_counter())
                if wait_s <= 0:
                    break
                if self._has_work(self.users, admit=self._pause is None):
                    self._serve_users()
                    self._flush()
                else:
                    self._orders.take_submissions(wait_s)
        except Exception as error:  # noqa: BLE001  the loop's own: the background unit goes on
            self._crash = error
        self._charged_until = time.perf_counter()

    def _post(self, posts: list[Post]) -> None:
        for _, event in posts:
            if isinstance(event, Delta):
                self.counters.generated_tokens += len(event.tokens)
                self.counters.finished += event.finish_reason is not None
        self._outbox += posts
        if any(isinstance(event, Failed) for _, event in posts):
            # Raises if the model cannot make a step at all: then the node ends, not the request.
            self.runner.probe()

    def _flush(self) -> None:
        if self._outbox:
            posts, self._outbox = self._outbox, []
            self.deliver(posts)

    def _submit(self, work: Work) -> None:
        self.lane(background=work.background).submit(work)
        if not work.background:
            self._share.users_came(time.perf_counter())

    def _cancel(self, request_id: str) -> None:
        for lane in self._lanes:
            lane.cancel(request_id)

    def _do_pause(self, mode: PauseMode, future: "Future[None]") -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._pause = mode
        if mode is PauseMode.ABORT:
            for lane in self._lanes:
                self._post(lane.abort(self.version))
        if mode is PauseMode.WAIT and any(lane.started for lane in self._lanes):
            self._drained.append(future)
        else:
            future.set_result(None)
            self._settle_drained()

    def _do_resume(self) -> None:
        self._pause = None
        self._settle_drained()

    def _settle_drained(self) -> None:
        for future in self._drained:
            future.set_result(None)
        self._drained.clear()

    def _fail_everything(self) -> None:
        stopped = Failed(EngineStoppedError("the generation loop has stopped"))
        self._settle_drained()
        self._orders.close()
        # A request whose failure showed that the node is broken may be sent again, elsewhere.
        self._outbox = [
            (sink, stopped if isinstance(event, Failed) else event) for sink, event in self._outbox
        ]
        for lane in self._lanes:
            self._outbox += [(work.sink, stopped) for work in lane.works()]
            lane.clear()
        self._flush()
