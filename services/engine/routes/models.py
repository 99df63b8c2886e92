"""`GET /v1/models` and the adapters."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from services.engine.routes.body import JsonRoute
from services.engine.routes.exchange import EngineParam
from services.engine.routes.schemas import LoadAdapterRequest, Named

router = APIRouter(route_class=JsonRoute)
STARTED = int(time.time())


@router.get("/v1/models")
async def list_models(engine: EngineParam) -> dict[str, Any]:
    """The base model and each loaded adapter."""
    settings, name = engine.settings, engine.settings.served_model_name
    rows: list[tuple[Any, ...]] = [(name, str(settings.model_path), None, settings.max_model_len)]
    rows += [(adapter.name, adapter.path, name, None) for adapter in engine.adapters.loaded()]
    common = {"object": "model", "created": STARTED, "owned_by": "reef"}
    keys = ("id", "root", "parent", "max_model_len")
    models = [common | dict(zip(keys, row, strict=True)) for row in rows]
    return {"object": "list", "data": models}


@router.post("/v1/load_lora_adapter")
async def load_adapter(body: LoadAdapterRequest, engine: EngineParam) -> PlainTextResponse:
    """Serve an adapter under a name."""
    await asyncio.to_thread(
        engine.adapters.load,
        body.lora_name,
        body.lora_path,
        in_place=body.load_inplace,
        base_version=engine.loop.version,
    )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_adapter(lora_name: Named, engine: EngineParam) -> PlainTextResponse:
    """Refuse new requests for an adapter; requests in flight finish."""
    engine.adapters.unload(lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{lora_name}' removed successfully.")
