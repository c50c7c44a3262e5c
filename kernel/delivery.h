/* What became of records that the kernel has produced, as a plugin of librdkafka (its plugin.library.paths).
 *
 * confluent-kafka hears of each record, lost or not, through a state that it allocates for it, and takes the GIL for
 * each. The kernel's records have no such state, so confluent-kafka passes over them; this interceptor keeps those that
 * were lost until losses_take asks for them. It runs in librdkafka's threads, without the GIL, and calls nothing of
 * Python.
 */
#ifndef PENSTOCK_DELIVERY_H
#define PENSTOCK_DELIVERY_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "librdkafka.h"

/* A record that was lost; librdkafka does not tell the time of such. Its topic, key and value lie behind it; a key or
 * value that is none has size -1. */
typedef struct lost_s {
    struct lost_s *next;
    int err;
    int32_t partition;
    ptrdiff_t topic_size, key_size, value_size;
    char data[];
} lost_record;

/* One producer's. It is never freed: librdkafka may report records even after on_destroy. */
typedef struct losses_s {
    struct losses_s *next;
    void *rk; /* NULL: it is gone */
    lost_record *first;
    lost_record **end;
    int unknown; /* records that were lost and for which there was no memory */
} losses;

static pthread_mutex_t losses_lock = PTHREAD_MUTEX_INITIALIZER;
static losses *all_losses = NULL;
/* Within produce: librdkafka reports what it refuses there both by the result and here. */
static __thread int producing __attribute__((tls_model("initial-exec"))) = 0;

static size_t lost_copy(char *to, const void *from, ptrdiff_t size) {
    if (size > 0) memcpy(to, from, (size_t)size);
    return size > 0 ? (size_t)size : 0;
}

static int losses_note(void *rk, rd_message *message, void *opaque) {
    losses *mine = opaque;
    if (!message->err || message->_private || producing) return 0; /* written, or reported elsewhere */
    const char *topic = message->rkt ? rd_topic_name(message->rkt) : "";
    ptrdiff_t topic_size = (ptrdiff_t)strlen(topic);
    ptrdiff_t key_size = message->key ? (ptrdiff_t)message->key_len : -1;
    ptrdiff_t value_size = message->payload ? (ptrdiff_t)message->len : -1;
    size_t size = sizeof(lost_record) + topic_size + message->key_len + message->len;
    lost_record *lost = malloc(size);
    pthread_mutex_lock(&losses_lock);
    if (!mine->rk) {
        free(lost);
    } else if (!lost) {
        mine->unknown++;
    } else {
        lost->next = NULL;
        lost->err = message->err;
        lost->partition = message->partition;
        lost->topic_size = topic_size;
        lost->key_size = key_size;
        lost->value_size = value_size;
        char *at = lost->data;
        at += lost_copy(at, topic, topic_size);
        at += lost_copy(at, message->key, key_size);
        lost_copy(at, message->payload, value_size);
        *mine->end = lost;
        mine->end = &lost->next;
    }
    pthread_mutex_unlock(&losses_lock);
    return 0;
}

static int losses_end(void *rk, void *opaque) {
    losses *mine = opaque;
    lost_record *lost;
    pthread_mutex_lock(&losses_lock);
    mine->rk = NULL;
    while ((lost = mine->first)) {
        mine->first = lost->next;
        free(lost);
    }
    pthread_mutex_unlock(&losses_lock);
    return 0;
}

static int losses_begin(void *rk, const void *conf, void *opaque, char *error, size_t error_size) {
    losses *mine = calloc(1, sizeof(losses));
    if (!mine) return -1;
    mine->rk = rk;
    mine->end = &mine->first;
    if (rd_interceptor_add_on_acknowledgement(rk, "penstock", losses_note, mine) ||
        rd_interceptor_add_on_destroy(rk, "penstock", losses_end, mine)) {
        free(mine);
        return -1;
    }
    pthread_mutex_lock(&losses_lock);
    mine->next = all_losses;
    all_losses = mine;
    pthread_mutex_unlock(&losses_lock);
    return 0;
}

/* Return the losses of a producer, NULL if it was made without the plugin. */
static losses *losses_of(void *rk) {
    losses *found;
    pthread_mutex_lock(&losses_lock);
    for (found = all_losses; found && found->rk != rk;) found = found->next;
    pthread_mutex_unlock(&losses_lock);
    return found;
}

/* Take out what was lost since the last time, oldest first, NULL if there is nothing; each is to be freed. */
static lost_record *losses_take(losses *mine, int *unknown) {
    pthread_mutex_lock(&losses_lock);
    lost_record *lost = mine->first;
    *unknown = mine->unknown;
    mine->first = NULL;
    mine->end = &mine->first;
    mine->unknown = 0;
    pthread_mutex_unlock(&losses_lock);
    return lost;
}

/* Hand a record to librdkafka, which copies it; timestamp 0: now. Return whether it took it. */
static int produce(void *rk, void *topic, int32_t partition, const void *key, size_t key_size, const void *value,
                   size_t value_size, int64_t timestamp) {
    rd_argument record[6]; /* not set to 0 as a whole: that is half a kilobyte for each record */
    record[0].kind = RD_TOPIC_HANDLE;
    record[0].as.pointer = topic;
    record[1].kind = RD_PARTITION;
    record[1].as.partition = partition;
    record[2].kind = RD_KEY;
    record[2].as.bytes.data = key;
    record[2].as.bytes.size = key_size;
    record[3].kind = RD_VALUE;
    record[3].as.bytes.data = value;
    record[3].as.bytes.size = value_size;
    record[4].kind = RD_TIMESTAMP;
    record[4].as.timestamp = timestamp;
    record[5].kind = RD_FLAGS;
    record[5].as.flags = RD_COPY;
    producing = 1;
    void *error = rd_produceva(rk, record, sizeof(record) / sizeof(record[0]));
    producing = 0;
    if (error) rd_error_destroy(error);
    return !error;
}

/* What librdkafka calls when a client is configured with the plugin. */
__attribute__((visibility("default"))) int conf_init(void *conf, void **opaque, char *error, size_t error_size) {
    return rd_conf_interceptor_add_on_new(conf, "penstock", losses_begin, NULL);
}

#endif
