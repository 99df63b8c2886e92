"""`GET /v1/models` and the adapters behind the names."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from services.engine.domain.errors import InvalidRequestError
from services.engine.engine import Engine
from services.engine.routes.body import JsonRoute
from services.engine.routes.exchange import engine_of
from services.engine.routes.schemas import LoadAdapterRequest, UnloadAdapterRequest

router = APIRouter(route_class=JsonRoute)
STARTED = int(time.time())
EngineParam = Annotated[Engine, Depends(engine_of)]


@router.get("/v1/models")
async def list_models(engine: EngineParam) -> dict[str, Any]:
    """The base model and each loaded adapter."""
    settings = engine.settings
    base: dict[str, Any] = {
        "id": settings.served_model_name,
        "root": str(settings.model_path),
        "parent": None,
    }
    base |= {"max_model_len": settings.max_model_len}
    adapters = [
        {
            "id": adapter.name,
            "root": adapter.path,
            "parent": settings.served_model_name,
            "max_model_len": None,
        }
        for adapter in engine.adapters.loaded()
    ]
    common = {"object": "model", "created": STARTED, "owned_by": "reef"}
    return {"object": "list", "data": [common | model for model in (base, *adapters)]}


@router.post("/v1/load_lora_adapter")
async def load_adapter(body: LoadAdapterRequest, engine: EngineParam) -> PlainTextResponse:
    """Serve an adapter under a name. 400: name taken, no room, unfit adapter; 404: nothing at that path."""
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
async def unload_adapter(body: UnloadAdapterRequest, engine: EngineParam) -> PlainTextResponse:
    """Refuse new requests for an adapter; those in flight finish. 404: not loaded."""
    engine.adapters.unload(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")
