"""Composition root."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

import structlog
from fastapi import FastAPI

from services.engine.adapters import AdapterRegistry
from services.engine.batch import RunningBatch
from services.engine.domain.sequence import TextRules
from services.engine.domain.work import Counters
from services.engine.engine import Engine, deliver_on
from services.engine.lane import Lane
from services.engine.loop import GenerationLoop
from services.engine.routes.api import build_api
from services.engine.runner import ModelRunner, load_model
from services.engine.settings import Settings
from services.engine.tokenizer import EngineTokenizer
from services.engine.weights import WeightSync

log = structlog.get_logger(__name__)
Crashed = Callable[[BaseException], None]


def build_app(settings: Settings, on_crash: Crashed = lambda _: None) -> FastAPI:
    """The server. It loads the model before it takes the first connection."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        events = asyncio.get_running_loop()
        engine = await asyncio.to_thread(build_engine, settings, events, on_crash)
        app.state.engine = engine
        engine.loop.start()
        log.info("serving", model=settings.served_model_name, path=str(settings.model_path))
        yield
        await asyncio.to_thread(engine.loop.stop)

    return build_api(lifespan)


def build_engine(
    settings: Settings, events: asyncio.AbstractEventLoop, on_crash: Crashed = lambda _: None
) -> Engine:
    """Load the model and connect the parts; the loop's events arrive on `events`."""
    model = load_model(settings.model_path, settings.torch_threads)
    tokenizer = EngineTokenizer(settings.model_path)
    if "max_model_len" not in settings.model_fields_set:
        most = min(settings.max_model_len, model.config.max_position_embeddings)
        settings = settings.model_copy(update={"max_model_len": most})
    runner = ModelRunner(model, length=settings.max_model_len)
    rules = TextRules(runner.eos_ids, settings.max_model_len, tokenizer.decode)
    counters = Counters()
    users, background = (
        Lane(runner, RunningBatch(runner, rules, settings.max_num_seqs), counters) for _ in range(2)
    )
    deliver = partial(deliver_on, events)
    loop = GenerationLoop(settings, runner, users, background, counters, deliver, on_crash)
    adapters = AdapterRegistry(settings, runner.lora.shapes)
    return Engine(settings, loop, tokenizer, adapters, WeightSync(model, loop))
