"""What openapi_suite.py has Schemathesis do before it sends a request."""

from hypothesis.internal import lambda_sources
import schemathesis

LIMITS = {"max_tokens": 3, "max_completion_tokens": 3, "max_output_tokens": 3, "forced_output_tokens": 3, "n": 4, "best_of": 4}
LENGTHS = {"/v1/chat/completions": "max_tokens", "/v1/completions": "max_tokens", "/v1/responses": "max_output_tokens"}


describe = lambda_sources.lambda_description


def describe_if_possible(function):
    """Python 3.11 cannot parse a source when it is called from deep within other calls; the text is only shown."""
    try:
        return describe(function)
    except SystemError:
        return "lambda: ..."


lambda_sources.lambda_description = describe_if_possible


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """Short outputs: a number that is too large becomes small, and where there is none there is one."""
    if not isinstance(case.body, dict):
        return
    for name, most in LIMITS.items():
        value = case.body.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and most < value <= 2**31 - 1 and value % 1 == 0:
            case.body[name] = most
    length = LENGTHS.get(case.operation.path)
    if length is not None and case.body.get(length) is None:
        case.body[length] = 3
