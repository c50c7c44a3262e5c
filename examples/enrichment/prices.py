"""The price service: ``GET /prices/<product>`` responds after 20 ms, like a service that queries a database.

Run it with ``uvicorn examples.enrichment.prices:app --port 8701``.
"""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

#: Response time, in seconds.
ANSWER_SECONDS = 0.02
PRICES = {"apple": 0.5, "book": 20.0, "camera": 450.0, "desk": 180.0, "engine": 2_900.0}


async def price(request: Request) -> JSONResponse:
    """Respond with the price of one product; 404 for others."""
    await asyncio.sleep(ANSWER_SECONDS)
    product = request.path_params["product"]
    if product not in PRICES:
        raise HTTPException(404, f"there is no product {product}")
    return JSONResponse({"product": product, "price": PRICES[product]})


app = Starlette(routes=[Route("/prices/{product}", price)])
