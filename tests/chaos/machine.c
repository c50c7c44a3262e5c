/* Stands between a process and libc (LD_PRELOAD), and makes its machine a bad one: a clock that is wrong, a disk that
 * is slow, full or broken. What is to happen is in a file that all processes of a host map (MACHINE_CONTROL); they
 * count there what did happen. machine.py has the same layout. Only writes below MACHINE_DISK are hit. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    _Atomic int64_t clock_offset_ms; /* added to CLOCK_REALTIME */
    _Atomic int64_t disk_errno;      /* what writes fail with, 0: they do not */
    _Atomic int64_t disk_delay_us;   /* before each write */
    _Atomic int64_t clock_readings;  /* that were wrong */
    _Atomic int64_t disk_failures;
    _Atomic int64_t disk_delays;
};

static struct control *control;
static char *disk; /* a copy: who sets a process's title overwrites the environment */
static size_t disk_length;

__attribute__((constructor)) static void map_control(void) {
    const char *name = getenv("MACHINE_CONTROL"), *below = getenv("MACHINE_DISK");
    if (name == NULL || below == NULL || (disk = strdup(below)) == NULL)
        return;
    disk_length = strlen(disk);
    int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        control = mapped;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* -- the clock */

static int64_t offset_ms(void) {
    int64_t offset = control == NULL ? 0 : atomic_load(&control->clock_offset_ms);
    if (offset != 0)
        atomic_fetch_add(&control->clock_readings, 1);
    return offset;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t wrong = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + offset_ms() * 1000000;
        now->tv_sec = wrong / 1000000000;
        now->tv_nsec = wrong % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec wrong;
    if (clock_gettime(CLOCK_REALTIME, &wrong) != 0)
        return -1;
    now->tv_sec = wrong.tv_sec;
    now->tv_usec = wrong.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec wrong;
    if (clock_gettime(CLOCK_REALTIME, &wrong) != 0)
        return -1;
    if (out != NULL)
        *out = wrong.tv_sec;
    return wrong.tv_sec;
}

/* -- the disk */

static int is_on_disk(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path);
    return length >= (ssize_t)disk_length && strncmp(path, disk, disk_length) == 0;
}

/* Returns whether the call fails; errno is set then. */
static int fails(int on_disk) {
    if (!on_disk)
        return 0;
    int64_t delay = atomic_load(&control->disk_delay_us), error = atomic_load(&control->disk_errno);
    if (delay > 0) {
        atomic_fetch_add(&control->disk_delays, 1);
        usleep((useconds_t)delay);
    }
    if (error == 0)
        return 0;
    atomic_fetch_add(&control->disk_failures, 1);
    errno = (int)error;
    return 1;
}

static int is_bad(void) {
    return control != NULL && (atomic_load(&control->disk_errno) != 0 || atomic_load(&control->disk_delay_us) != 0);
}

#define HIT_FILE(file) (is_bad() && fails(is_on_disk(file)))
#define HIT_PATH(path, writes) \
    (is_bad() && (writes) && fails(strncmp((path), disk, disk_length) == 0))

ssize_t write(int file, const void *bytes, size_t count) {
    REAL(write);
    return HIT_FILE(file) ? -1 : real(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    return HIT_FILE(file) ? -1 : real(file, parts, count);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset) {
    REAL(pwrite);
    return HIT_FILE(file) ? -1 : real(file, bytes, count, offset);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    REAL(pwrite64);
    return HIT_FILE(file) ? -1 : real(file, bytes, count, offset);
}

int fsync(int file) {
    REAL(fsync);
    return HIT_FILE(file) ? -1 : real(file);
}

int fdatasync(int file) {
    REAL(fdatasync);
    return HIT_FILE(file) ? -1 : real(file);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            __builtin_va_list rest; \
            __builtin_va_start(rest, flags); \
            mode = __builtin_va_arg(rest, mode_t); \
            __builtin_va_end(rest); \
        } \
        return HIT_PATH(path, flags & O_CREAT) ? -1 : real(path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
