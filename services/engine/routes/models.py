"""`GET /v1/models` and the adapters."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from services.engine.domain.errors import InvalidRequestError
from services.engine.engine import Engine
from services.engine.routes.body import JsonRoute
from services.engine.routes.exchange import engine_of
from services.engine.routes.schemas import LoadAdapterRequest, Named

router = APIRouter(route_class=JsonRoute)
STARTED = int(time.time())
EngineParam = Annotated[Engine, Depends(engine_of)]


@router.get("/v1/models")
async def list_models(engine: EngineParam) -> dict[str, Any]:
    """The base model and each loaded adapter."""
    name, root = engine.settings.served_model_name, str(engine.settings.model_path)
    common = {"object": "model", "created": STARTED, "owned_by": "reef"}
    base: dict[str, Any] = {"id": name, "root": root, "parent": None}
    base["max_model_len"] = engine.settings.max_model_len
    adapters = [
        {"id": adapter.name, "root": adapter.path, "parent": name, "max_model_len": None}
        for adapter in engine.adapters.loaded()
    ]
    return {"object": "list", "data": [common | model for model in (base, *adapters)]}


@router.post("/v1/load_lora_adapter")
async def load_adapter(body: LoadAdapterRequest, engine: EngineParam) -> PlainTextResponse:
    """Serve an adapter under a name."""
    if not engine.settings.enable_lora:
        raise InvalidRequestError("lora_name", "this server runs without LoRA (enable_lora)")
    version = engine.loop.version
    await asyncio.to_thread(
        engine.adapters.load,
        body.lora_name,
        body.lora_path,
        in_place=body.load_inplace,
        base_version=version,
    )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_adapter(lora_name: Named, engine: EngineParam) -> PlainTextResponse:
    """Refuse new requests for an adapter; requests in flight finish."""
    engine.adapters.unload(lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{lora_name}' removed successfully.")
