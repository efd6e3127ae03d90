"""Loading and unloading adapters while the server runs, with the names of vLLM and SGLang."""

from fastapi import APIRouter, Depends
from starlette.responses import Response

from outrider.errors import RequestError
from outrider.hub.adapter_folder import find_adapter
from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import AsyncEngine
from outrider.server.http_errors import ApiError
from outrider.server.json_body import JsonRoute
from outrider.server.protocol.neutral_fields import RequestBody
from outrider.server.same_origin import refuse_other_sites


class LoadAdapter(RequestBody):
    """The adapter in a folder of the server, and what clients call it."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None  # replace the adapter of this name
    pinned: bool | None = None  # SGLang's, without effect


class UnloadAdapter(RequestBody):
    """Which adapter."""

    lora_name: str
    lora_int_id: int | None = None  # vLLM's, without effect


def adapter_routes(async_engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter(tags=["Operation"], route_class=JsonRoute)
    operators = [Depends(refuse_other_sites)]

    @router.post("/v1/load_lora_adapter", dependencies=operators)
    @router.post("/load_lora_adapter", dependencies=operators)
    async def load_lora_adapter(body: LoadAdapter) -> Response:
        """Check an adapter and give it a name. Running requests go on."""
        replaces = bool(body.load_inplace) and body.lora_name in model.adapters.names
        await load_adapter(
            async_engine, model, body.lora_name, body.lora_path, is_replaced=replaces
        )
        return _text(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", dependencies=operators)
    @router.post("/unload_lora_adapter", dependencies=operators)
    async def unload_lora_adapter(body: UnloadAdapter) -> Response:
        """Forget the name of an adapter. Requests that run through it go on."""
        if body.lora_name not in model.adapters.names:
            raise ApiError(
                404,
                f"there is no adapter {body.lora_name!r} here; /v1/models lists them",
                param="lora_name",
                code="model_not_found",
            )
        model.adapters.remove(body.lora_name)
        return _text(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router


async def load_adapter(
    async_engine: AsyncEngine,
    model: ServedModel,
    name: str,
    path: str,
    *,
    is_replaced: bool = False,  # the name is in use, for an adapter that this one replaces
) -> None:
    """Name an adapter once every worker has read it; refuses one that cannot be used."""
    if name in (model.name, "default"):
        raise RequestError(f"{name!r} is the name of the model; choose another for the adapter")
    if not is_replaced:
        model.adapters.check_new(name)
    await async_engine.check_adapter(await async_engine.run_in_thread(lambda: find_adapter(path)))
    if not is_replaced:
        model.adapters.check_new(name)  # another call may have been faster
    model.adapters.add(name, path)


def _text(text: str) -> Response:
    return Response(text, media_type="text/plain")
