"""``reload/`` over HTTP: the configuration is read anew, for who has shown an operator's token that is for changes."""

from fastapi import APIRouter, Request, Response

from oncegate.app.operators.audit import OPERATOR, Author
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.pages.described.gateway import ReloadedShape
from oncegate.app.operators.pages.reply import LARGE, NO_TOKEN, READS_ONLY, SLOW, answer, document, problem
from oncegate.app.operators.reloading import Reload

router = APIRouter(prefix="/reload", tags=["operators"], responses=NO_TOKEN | READS_ONLY | SLOW | LARGE)
_REFUSED = answer(409, "Nothing was changed: detail is the line that says why.")


@router.post(
    "/",
    response_model=ReloadedShape,
    response_description="It is in effect, in all processes.",
    responses=_REFUSED,
)
async def reload_configuration(request: Request) -> Response:
    """Have the configuration read anew, as SIGHUP does."""
    reload: Reload = request.app.state.reload
    reloaded = await reload()
    done = "not reloaded" if reloaded.refusal else "reloaded"
    audit: AuditLines = request.app.state.audit
    await audit.report(Author(request.scope[OPERATOR]), f"configuration {reloaded.digest}", done)
    if reloaded.refusal:
        return problem(409, reloaded.refusal, "Not Reloaded")
    return document({"configuration": reloaded.digest, "after_restart": list(reloaded.wait)})
