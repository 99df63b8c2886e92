"""vLLM's administration routes."""
# They need the node's key or nothing at all: keep them off public networks.

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query

from services.engine.domain.errors import InvalidRequestError
from services.engine.gloo import Rendezvous
from services.engine.loop import PauseMode
from services.engine.routes.body import JsonRoute
from services.engine.routes.exchange import EngineParam
from services.engine.routes.schemas import Named, TransferInit, UpdateInfo
from services.engine.weights import TensorSpec, torch_dtype

router = APIRouter(route_class=JsonRoute)
Flag = Annotated[bool, Query()]


@router.post("/pause")
async def pause(engine: EngineParam, mode: PauseMode = PauseMode.ABORT) -> dict[str, str]:
    """Stop stepping: `abort` ends running requests, `wait` lets them end, `keep` freezes them."""
    await asyncio.wrap_future(engine.loop.pause(mode))
    return {"status": "paused"}


@router.post("/resume")
async def resume(engine: EngineParam) -> dict[str, str]:
    await asyncio.wrap_future(engine.loop.resume())
    return {"status": "resumed"}


@router.get("/is_paused")
async def is_paused(engine: EngineParam) -> dict[str, bool]:
    return {"is_paused": engine.loop.paused}


@router.post("/init_weight_transfer_engine")
async def init_weight_transfer(
    init_info: Annotated[TransferInit, Body(embed=True)], engine: EngineParam
) -> dict[str, str]:
    """Meet the trainer; answers when all ranks have come."""
    info = init_info
    if info.rank_offset >= info.world_size:
        raise InvalidRequestError("init_info", "rank_offset must be below world_size")
    timeout_s = info.timeout_s or engine.settings.weight_transfer_timeout_s
    address, port = info.master_address, info.master_port
    meeting = Rendezvous(address, port, info.rank_offset, info.world_size, timeout_s)
    await engine.weights.connect(meeting)
    return {"message": "Weight transfer initialized"}


@router.post("/start_weight_update")
async def start_weight_update(engine: EngineParam) -> dict[str, str]:
    await engine.weights.start()
    return {"message": "Weight update started"}


@router.post("/update_weights")
async def update_weights(
    update_info: Annotated[UpdateInfo, Body(embed=True)], engine: EngineParam
) -> dict[str, str]:
    """Collect tensors, from the trainer's broadcasts or from a file."""
    info = update_info
    if info.weights_path is not None:
        await engine.weights.read(Path(info.weights_path))
    else:
        await engine.weights.receive(_specs(info), info.timeout_s)
    return {"message": "Weights updated"}


@router.post("/finish_weight_update")
async def finish_weight_update(weight_version: Named, engine: EngineParam) -> dict[str, str]:
    """Put the collected tensors in place, between two steps."""
    await engine.weights.finish(weight_version)
    return {"message": "Weight update finished"}


@router.post("/update_weight_version")
async def update_weight_version(new_version: Named, engine: EngineParam) -> dict[str, str]:
    """Rename the version that is served."""
    await engine.weights.rename(new_version)
    return {"message": "Weight version updated", "new_version": new_version}


@router.get("/weight_info")
async def weight_info(
    engine: EngineParam, checksum: Flag = True, tensors: Flag = False
) -> dict[str, Any]:
    """Version of the base weights, checksum, and on request the digest of each tensor."""
    # The first digest after an update reads every byte of the weights.
    info: dict[str, Any] = {
        "weight_version": engine.loop.version,
        "dtype": "float32",
        "parameters": engine.weights.parameters,
    }
    if checksum:
        info["checksum"] = await engine.weights.checksum()
    if tensors:
        info["tensors"] = await engine.weights.digests()
    return info


@router.post("/reset_prefix_cache")
async def reset_prefix_cache() -> dict[str, Any]:
    # vLLM's route. Prompts are always read anew here.
    return {"message": "No prefix cache is kept", "entries": 0}


@router.get("/get_world_size")
async def get_world_size() -> dict[str, int]:
    """Ranks that this node takes in a weight transfer."""
    return {"world_size": 1}


def _specs(info: UpdateInfo) -> list[TensorSpec]:
    if info.packed:
        remedy = "broadcast tensor by tensor"
        raise InvalidRequestError("update_info", f"packed transfers are not supported: {remedy}")
    if not info.names or not len(info.names) == len(info.dtype_names) == len(info.shapes):
        lists = "names, dtype_names and shapes"
        raise InvalidRequestError("update_info", f"{lists} must be lists of the same length")
    rows = zip(info.names, info.dtype_names, info.shapes, strict=True)
    return [TensorSpec(name, torch_dtype(dtype), tuple(shape)) for name, dtype, shape in rows]
