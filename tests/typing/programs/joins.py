"""Joins of all kinds: the types of a joiner's arguments follow from both sides, with None for a side that may be
missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from penstock import JoinWindows, KStream, KTable, Materialized, Serdes, Stores, StreamsBuilder, Topology


@dataclass
class Order:
    customer: str
    product: int
    pieces: int


@dataclass
class Customer:
    name: str
    city: str


def ship(order: Order, customer: Customer) -> str:
    return f"{order.pieces} to {customer.city}"


def ship_with_key(number: str, order: Order, customer: Customer) -> str:
    return f"{number}: {ship(order, customer)}"


def topology() -> Topology:
    builder = StreamsBuilder()
    text, orders_serde = Serdes.string(), Serdes.json(Order)
    orders = builder.stream("orders", key_serde=text, value_serde=orders_serde)
    payments = builder.stream("payments", key_serde=text, value_serde=Serdes.float64())
    past = Materialized(Stores.persistent_versioned_key_value_store("customers", timedelta(days=1)))
    customers = builder.table("customers", key_serde=text, value_serde=Serdes.json(Customer), store=past)
    products = builder.global_table("products", key_serde=Serdes.int64(), value_serde=text)
    assert_type(orders, KStream[str, Order])
    assert_type(customers, KTable[str, Customer])

    hour = JoinWindows(timedelta(hours=1))
    assert_type(orders.join(payments, lambda order, paid: paid / order.pieces, hour), KStream[str, float])
    assert_type(
        orders.left_join(payments, lambda order, paid: paid is not None and order.pieces > 1, hour, name="paid"),
        KStream[str, bool],
    )
    assert_type(
        orders.outer_join(payments, lambda order, paid: (order, paid), hour, store="waiting"),
        KStream[str, tuple[Order | None, float | None]],
    )
    assert_type(
        orders.outer_join(payments, lambda key, order, paid: key if paid is None else order, hour, with_key=True),
        KStream[str, str | Order | None],
    )

    assert_type(orders.join(customers, ship), KStream[str, str])
    assert_type(orders.join(customers, ship, grace=timedelta(minutes=1)), KStream[str, str])
    assert_type(orders.join(customers, ship_with_key, with_key=True), KStream[str, str])
    assert_type(orders.left_join(customers, lambda order, customer: customer), KStream[str, Customer | None])

    assert_type(
        orders.join(
            products, lambda order, product: product * order.pieces, key_selector=lambda key, order: order.product
        ),
        KStream[str, str],
    )
    assert_type(
        orders.join(products, lambda key, order: order.product, lambda order, product: product.encode()),
        KStream[str, bytes],
    )
    assert_type(
        orders.left_join(
            products,
            lambda key, order, product: (key, product),
            key_selector=lambda key, order: order.product,
            with_key=True,
        ),
        KStream[str, tuple[str, str | None]],
    )
    assert_type(
        orders.left_join(
            products,
            lambda key, product_id, order, product: (key, product_id, product),
            key_selector=lambda key, order: order.product,
            with_mapped_key=True,
        ),
        KStream[str, tuple[str, int | None, str | None]],
    )
    assert_type(
        orders.join(
            products,
            lambda key, order: order.product,
            lambda key, product_id, order, product: (key, product_id, order, product),
            with_mapped_key=True,
        ),
        KStream[str, tuple[str, int, Order, str]],
    )

    latest, paid = orders.to_table(), payments.to_table()
    assert_type(latest.join(paid, lambda order, paid: order.pieces * paid, store="values"), KTable[str, float])
    assert_type(
        latest.left_join(paid, lambda order, paid: (order.customer, paid)), KTable[str, tuple[str, float | None]]
    )
    assert_type(
        latest.outer_join(paid, lambda order, paid: (order, paid)), KTable[str, tuple[Order | None, float | None]]
    )
    shipped = latest.join(customers, ship, foreign_key=lambda order: order.customer)
    assert_type(shipped, KTable[str, str])
    assert_type(
        latest.left_join(
            customers,
            lambda order, customer: None if customer is None else customer.name,
            foreign_key=lambda key, order: key + order.customer,
            with_key=True,
        ),
        KTable[str, str | None],
    )
    shipped.to_stream().to("shipped")
    return builder.build()
