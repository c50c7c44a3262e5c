/* Wraps Python's allocator for blocks larger than 512 bytes: keeps freed blocks of a few KB for the next request.
 *
 * glibc caches freed blocks per thread only up to 1,032 bytes. Larger blocks return to the heap, which merges them with
 * their neighbors and splits them again for the next request, under a lock that librdkafka's threads need too. orjson
 * requests 4 KB or more for each text that it reads, and another 4 KB for each text that it writes.
 *
 * Blocks are kept for one thread only, that of a stream thread's loop: at most one of each size and SLOTS in total. They
 * still belong to malloc: any thread may free them, in any way.
 */
#ifndef PENSTOCK_BUFFERS_H
#define PENSTOCK_BUFFERS_H

#include <Python.h>

#ifdef __GLIBC__
#include <malloc.h>

enum { BUFFERS_USABLE = 1 };
/* In bytes. LEAST: glibc caches smaller blocks itself. MOST: what orjson requests to read a text of 5 KB. */
enum { LEAST = 1033, MOST = 65536, SLOTS = 16 };

typedef struct {
    void *block; /* NULL: the slot is free */
    size_t size; /* usable size of the block */
} slot;

static PyMemAllocatorEx beneath;
static slot slots[SLOTS];
/* Whether blocks are kept for this thread. The TLS model avoids the call that each access in a library costs. */
static __thread int is_the_loop __attribute__((tls_model("initial-exec"))) = 0;

/* Usable size of a block that malloc returns for this size. */
static inline size_t usable(size_t size) {
    return ((size + sizeof(size_t) + 15) & ~(size_t)15) - sizeof(size_t);
}

/* Different slots for sizes that are close, and for multiples of 4 KB, to which orjson rounds up. */
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
            block = before; /* keep the newer block: the program may now use other sizes */
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

/* Keep blocks for the calling thread until the process ends. Returns 0 if they are kept for another thread. */
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
