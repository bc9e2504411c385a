"""One module for each route: `add_routes(app: FastAPI, front: Front) -> None`."""
