/* Python's allocator for what is larger than 512 bytes, with the last blocks of some KB kept for the next request.
 *
 * glibc keeps what a thread frees at hand up to 1,032 bytes only. What is larger goes back to the heap, which merges it
 * with its neighbours and cuts it off again for the next one, under a lock that librdkafka's threads want too. orjson
 * asks for 4 KB or more for each text that it reads, and for another 4 KB for each that it writes.
 *
 * Blocks are kept for one thread only, the one that runs a stream thread's loop, one of each size at most and SLOTS in
 * all. They remain malloc's: any thread may free them, in any way.
 */
#ifndef PENSTOCK_BUFFERS_H
#define PENSTOCK_BUFFERS_H

#include <Python.h>

#ifdef __GLIBC__
#include <malloc.h>

enum { BUFFERS_USABLE = 1 };
/* Bytes. LEAST: smaller ones glibc keeps itself. MOST: what orjson asks for to read a text of 5 KB. */
enum { LEAST = 1033, MOST = 65536, SLOTS = 16 };

typedef struct {
    void *block; /* NULL: the slot is free */
    size_t size; /* what fits into the block */
} slot;

static PyMemAllocatorEx beneath;
static slot slots[SLOTS];
/* Whether blocks are kept for this thread. The model: no call for each look at it, as a library would need else. */
static __thread int is_the_loop __attribute__((tls_model("initial-exec"))) = 0;

/* What fits into a block that malloc gives for this size. */
static inline size_t usable(size_t size) {
    return ((size + sizeof(size_t) + 15) & ~(size_t)15) - sizeof(size_t);
}

/* Different slots for sizes that are close and, because orjson rounds up so, for multiples of 4 KB. */
static inline slot *slot_for(size_t usable_size) {
    return slots + (usable_size / 16 + usable_size / 4096) % SLOTS;
}

static void *kept_malloc(void *context, size_t size) {
    if (size >= LEAST && size <= MOST && is_the_loop) {
        slot *kept = slot_for(usable(size));
        if (kept->block && kept->size == usable(size)) {
            void *block = kept->block;
            kept->block = NULL;
            return block;
        }
    }
    return beneath.malloc(beneath.ctx, size);
}

static void kept_free(void *context, void *block) {
    if (block && is_the_loop) {
        size_t size = malloc_usable_size(block);
        if (size >= LEAST && size <= MOST) {
            slot *kept = slot_for(size);
            void *before = kept->block;
            kept->block = block;
            kept->size = size;
            block = before; /* the last one stays: the program may have gone on to other sizes */
        }
    }
    beneath.free(beneath.ctx, block);
}

static void *kept_calloc(void *context, size_t count, size_t size) {
    return beneath.calloc(beneath.ctx, count, size);
}

static void *kept_realloc(void *context, void *block, size_t size) {
    return beneath.realloc(beneath.ctx, block, size);
}

/* Keep blocks for the calling thread, from now on until the process ends; 0: they are kept for another one. */
static int buffers_keep(void) {
    static int installed = 0;
    PyMemAllocatorEx ours = {NULL, kept_malloc, kept_calloc, kept_realloc, kept_free};
    if (!installed) {
        PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &beneath);
        PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &ours);
        installed = is_the_loop = 1;
    }
    return is_the_loop;
}

#else
enum { BUFFERS_USABLE = 0 };
static int buffers_keep(void) {
    return 0;
}
#endif

#endif
