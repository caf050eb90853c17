"""Triton kernels of paged attention; with TRITON_INTERPRET=1 they run on the CPU, for tests."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

# A program takes a tile of queries: BLOCK_Q rows of one request, and of each all GROUP query heads that share one K/V
# head, so K and V are read once for them. Lane m of the tile's BLOCK_M is row m // GROUP, head m % GROUP. Numbers that
# change from step to step are not specialized on: that would compile in the middle of serving.


@triton.jit
def write(
    key_blocks,
    value_blocks,
    key,
    value,
    slots,
    key_row,
    key_head,
    value_row,
    value_head,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
):
    """Grid (rows,): K and V of one row go to the row's slot, in the pool's dtype."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    heads = tl.arange(0, HEADS_PAD)[:, None]
    target = (slot // BLOCK_SIZE * KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE
    dims = tl.arange(0, KEY_PAD)[None, :]
    mask = (heads < KV_HEADS) & (dims < KEY_DIM)
    given = tl.load(key + row * key_row + heads * key_head + dims, mask=mask)
    tl.store(key_blocks + target * KEY_DIM + dims, given.to(key_blocks.dtype.element_ty), mask=mask)
    dims = tl.arange(0, VALUE_PAD)[None, :]
    mask = (heads < KV_HEADS) & (dims < VALUE_DIM)
    given = tl.load(value + row * value_row + heads * value_head + dims, mask=mask)
    tl.store(value_blocks + target * VALUE_DIM + dims, given.to(value_blocks.dtype.element_ty), mask=mask)


@triton.jit
def request_of(tile, starts, num_requests, BLOCK_Q: tl.constexpr):
    """By bisection: request i may have tiles from starts[i] // BLOCK_Q + i on, so no table of tiles is needed."""
    low = 0
    high = num_requests
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def slots_of(keys, there, table, kv_head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Where positions `keys` of a request lie, as rows of the pool, and in which blocks."""
    blocks = tl.load(table + keys // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
    return (blocks * KV_HEADS + kv_head) * BLOCK_SIZE + keys % BLOCK_SIZE, blocks


@triton.jit
def rows_at(pool, slots, there, DIM: tl.constexpr, PAD: tl.constexpr, DOT: tl.constexpr):
    """[keys, PAD]; zeros for what no row sees: what lies there may be anything, nan too."""
    dims = tl.arange(0, PAD)
    mask = there[:, None] & (dims < DIM)[None, :]
    return tl.load(pool + slots[:, None] * DIM + dims[None, :], mask=mask, other=0.0).to(DOT)


@triton.jit
def scores_of(
    query, keys, positions, key_positions, there, scale, softcap, WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr
):
    """[lanes, keys] float32, -inf where a row doesn't see a key."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if HAS_SOFTCAP:
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
    visible = there[None, :] & (key_positions[None, :] <= positions[:, None])
    if WINDOW > 0:
        visible = visible & (key_positions[None, :] > positions[:, None] - WINDOW)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def lanes_of(first, length, kv_head, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Row of the request and head of each lane of a tile, and whether there is such a row."""
    lanes = tl.arange(0, BLOCK_M)
    rows = first + lanes // GROUP
    return rows, kv_head * GROUP + lanes % GROUP, (lanes < BLOCK_Q * GROUP) & (rows < length)


@triton.jit
def queries_of(
    query,
    rows,
    heads,
    active,
    query_row,
    query_head,
    KEY_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    DOT: tl.constexpr,
):
    """[BLOCK_M, KEY_PAD], 0 where there is nothing; rows of the step."""
    dims = tl.arange(0, KEY_PAD)
    wanted = active[:, None] & (dims < KEY_DIM)[None, :]
    lanes = rows[:, None] * query_row + heads[:, None] * query_head + dims[None, :]
    return tl.load(query + lanes, mask=wanted, other=0.0).to(DOT)


@triton.jit(do_not_specialize=["num_requests", "num_rows", "table_row"])
def attend(
    output,
    sums,
    maxima,
    query,
    key_blocks,
    value_blocks,
    tables,
    starts,
    contexts,
    sinks,
    num_requests,
    num_rows,
    scale,
    softcap,
    query_row,
    query_head,
    table_row,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    DOT: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Grid (tiles, K/V heads, SPLITS): online softmax (Dao et al. 2022) over one split of the keys a tile sees.

    output [T, heads, VALUE_DIM] divided by the sum if SPLITS is 1, else [SPLITS, T, heads, VALUE_DIM] float32 and not
    divided; sums and maxima [SPLITS, T, heads] float32.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request = request_of(tile, starts, num_requests, BLOCK_Q)
    start = tl.load(starts + request)
    length = tl.load(starts + request + 1) - start
    first = (tile - start // BLOCK_Q - request) * BLOCK_Q
    if first >= length:
        return
    past = tl.load(contexts + request) - length
    rows, heads, active = lanes_of(first, length, kv_head, GROUP, BLOCK_M, BLOCK_Q)
    queries = queries_of(query, start + rows, heads, active, query_row, query_head, KEY_DIM, KEY_PAD, DOT)

    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # noqa: SIM102  (one is decided when it compiles, the other when it runs)
        if split == 0:
            maximum = tl.load(sinks + heads, mask=active, other=0.0).to(tl.float32)
            total = tl.full([BLOCK_M], 1.0, tl.float32)
    values = tl.zeros([BLOCK_M, VALUE_PAD], tl.float32)

    end = past + tl.minimum(first + BLOCK_Q, length)
    begin = tl.maximum(past + first - WINDOW + 1, 0) if WINDOW > 0 else 0
    num_steps = tl.cdiv(end, BLOCK_N) - begin // BLOCK_N
    per_split = tl.cdiv(num_steps, SPLITS)
    step = begin // BLOCK_N + split * per_split
    for number in range(step, tl.minimum(step + per_split, tl.cdiv(end, BLOCK_N))):
        keys = number * BLOCK_N + tl.arange(0, BLOCK_N)
        there = (keys >= begin) & (keys < end)
        slots, _ = slots_of(keys, there, tables + request * table_row, kv_head, KV_HEADS, BLOCK_SIZE)
        some = rows_at(key_blocks, slots, there, KEY_DIM, KEY_PAD, DOT)
        scores = scores_of(queries, some, past + rows, keys, there, scale, softcap, WINDOW, HAS_SOFTCAP)
        higher = tl.maximum(maximum, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - shift[:, None])
        shrink = tl.exp(maximum - shift)
        total = total * shrink + tl.sum(weights, 1)
        some = rows_at(value_blocks, slots, there, VALUE_DIM, VALUE_PAD, DOT)
        values = values * shrink[:, None] + tl.dot(weights.to(DOT), some, input_precision="ieee")
        maximum = higher

    if SPLITS == 1:
        values = values / tl.where(active, total, 1.0)[:, None]
    place = (split * num_rows + start + rows) * (KV_HEADS * GROUP) + heads
    tl.store(sums + place, total, mask=active)
    tl.store(maxima + place, maximum, mask=active)
    dims = tl.arange(0, VALUE_PAD)
    target = place.to(tl.int64)[:, None] * VALUE_DIM + dims[None, :]
    mask = active[:, None] & (dims < VALUE_DIM)[None, :]
    tl.store(output + target, values.to(output.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_places"])
def merge(
    output,
    parts,
    sums,
    maxima,
    num_places,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Grid (T * heads,): the splits of one row and head, each relative to its own maximum, as one (flash-decoding)."""
    place = tl.program_id(0)
    dims = tl.arange(0, VALUE_PAD)
    splits = tl.arange(0, SPLITS)
    highest = tl.max(tl.load(maxima + splits * num_places + place), 0)
    total = 0.0
    values = tl.zeros([VALUE_PAD], tl.float32)
    for split in range(SPLITS):
        at = split * num_places + place
        share = tl.exp(tl.load(maxima + at) - highest)
        total += share * tl.load(sums + at)
        part = parts + at.to(tl.int64) * VALUE_DIM + dims
        values += share * tl.load(part, mask=dims < VALUE_DIM, other=0.0)
    target = output + place.to(tl.int64) * VALUE_DIM + dims
    tl.store(target, (values / total).to(output.dtype.element_ty), mask=dims < VALUE_DIM)


@triton.jit(do_not_specialize=["num_requests", "table_row"])
def weigh(
    mass,
    sums,
    maxima,
    query,
    key_blocks,
    tables,
    starts,
    contexts,
    num_requests,
    scale,
    softcap,
    query_row,
    query_head,
    table_row,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DOT: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Grid (tiles, K/V heads): the softmax weights again, from `attend`'s sums and maxima, added up by block."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    request = request_of(tile, starts, num_requests, BLOCK_Q)
    start = tl.load(starts + request)
    length = tl.load(starts + request + 1) - start
    first = (tile - start // BLOCK_Q - request) * BLOCK_Q
    if first >= length:
        return
    past = tl.load(contexts + request) - length
    rows, heads, active = lanes_of(first, length, kv_head, GROUP, BLOCK_M, BLOCK_Q)
    queries = queries_of(query, start + rows, heads, active, query_row, query_head, KEY_DIM, KEY_PAD, DOT)
    place = (start + rows) * (KV_HEADS * GROUP) + heads
    total = tl.load(sums + place, mask=active, other=1.0)
    maximum = tl.load(maxima + place, mask=active, other=0.0)

    end = past + tl.minimum(first + BLOCK_Q, length)
    begin = tl.maximum(past + first - WINDOW + 1, 0) if WINDOW > 0 else 0
    for number in range(begin // BLOCK_N, tl.cdiv(end, BLOCK_N)):
        keys = number * BLOCK_N + tl.arange(0, BLOCK_N)
        there = (keys >= begin) & (keys < end)
        slots, blocks = slots_of(keys, there, tables + request * table_row, kv_head, KV_HEADS, BLOCK_SIZE)
        some = rows_at(key_blocks, slots, there, KEY_DIM, KEY_PAD, DOT)
        scores = scores_of(queries, some, past + rows, keys, there, scale, softcap, WINDOW, HAS_SOFTCAP)
        weights = tl.exp(scores - maximum[:, None]) / total[:, None]
        weights = tl.where(active[:, None], weights, 0.0)
        tl.atomic_add(mass + blocks, tl.sum(weights, 0) / length, mask=there)
