/* librdkafka's public functions that the kernel calls, looked up in the library that confluent-kafka has loaded.
 *
 * Its own header is not there where the kernel is built: the types are those of rdkafka.h, which promises not to change
 * what is copied here. Each module that includes this has functions of its own and calls rd_load() first.
 */
#ifndef PENSTOCK_LIBRDKAFKA_H
#define PENSTOCK_LIBRDKAFKA_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

/* rd_kafka_message_t */
typedef struct {
    int err;
    void *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_message;

/* rd_kafka_vu_t: an argument of rd_kafka_produceva; kind: rd_kafka_vtype_t. */
enum { RD_TOPIC_HANDLE = 2, RD_PARTITION, RD_VALUE, RD_KEY, RD_OPAQUE, RD_FLAGS, RD_TIMESTAMP };
typedef struct {
    int kind;
    union {
        void *pointer;
        int flags;
        int32_t partition;
        int64_t timestamp;
        struct {
            const void *data;
            size_t size;
        } bytes;
        char reserved[64];
    } as;
} rd_argument;

enum { RD_PRODUCER = 0, RD_CONSUMER = 1 }; /* rd_kafka_type_t */
enum { RD_COPY = 2 };                      /* RD_KAFKA_MSG_F_COPY */

typedef int (*rd_on_new)(void *rk, const void *conf, void *opaque, char *error, size_t error_size);
typedef int (*rd_on_destroy)(void *rk, void *opaque);
typedef int (*rd_on_acknowledgement)(void *rk, rd_message *message, void *opaque);

#define RD_FUNCTIONS(F)                                                                                         \
    F(const char *, err2str, (int))                                                                             \
    F(const char *, name, (const void *))                                                                       \
    F(int, type, (const void *))                                                                                \
    F(const char *, topic_name, (const void *))                                                                 \
    F(void *, topic_new, (void *, const char *, void *))                                                        \
    F(void, topic_destroy, (void *))                                                                            \
    F(int64_t, message_timestamp, (const rd_message *, int *))                                                  \
    F(int, message_headers, (const rd_message *, void **))                                                      \
    F(int32_t, message_leader_epoch, (const rd_message *))                                                      \
    F(int, header_get_all, (const void *, size_t, const char **, const void **, size_t *))                      \
    F(const char *, message_errstr, (const rd_message *))                                                       \
    F(void, message_destroy, (rd_message *))                                                                    \
    F(void *, queue_new, (void *))                                                                              \
    F(void, queue_destroy, (void *))                                                                            \
    F(void *, queue_get_partition, (void *, const char *, int32_t))                                             \
    F(void, queue_forward, (void *, void *))                                                                    \
    F(ptrdiff_t, consume_batch_queue, (void *, int, rd_message **, size_t))                                     \
    F(rd_message *, consume_queue, (void *, int))                                                               \
    F(void *, produceva, (void *, const rd_argument *, size_t))                                                 \
    F(void, error_destroy, (void *))                                                                            \
    F(int, conf_interceptor_add_on_new, (void *, const char *, rd_on_new, void *))                              \
    F(int, interceptor_add_on_destroy, (void *, const char *, rd_on_destroy, void *))                           \
    F(int, interceptor_add_on_acknowledgement, (void *, const char *, rd_on_acknowledgement, void *))

#define RD_DECLARE(result, name, arguments) static result(*rd_##name) arguments;
RD_FUNCTIONS(RD_DECLARE)

/* Look the functions up in the library at a path, which is loaded already; return whether all are there. */
static int rd_load(const char *path) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return 0;
#define RD_LOOK_UP(result, name, arguments) \
    if (!(*(void **)(&rd_##name) = dlsym(library, "rd_kafka_" #name))) return 0;
    RD_FUNCTIONS(RD_LOOK_UP)
    return 1;
}

#endif
