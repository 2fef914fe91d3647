/* Two clocks of one process, each moved by as many nanoseconds as the file named by
 * SLOTWHEEL_TEST_CLOCK says: first the wall clock, then the time since the machine's start with the
 * time that it has slept (int64, native byte order). All other clocks stay as they are.
 * Loaded with LD_PRELOAD. The variable may be set later than that: a fork has its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_ns;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SLOTWHEEL_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *page = mmap(NULL, 2 * sizeof *offset_ns, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset_ns = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock_gettime || !offset_ns) begin();
    int failed = real_clock_gettime(clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (failed || !offset_ns || (!is_wall && clock != CLOCK_BOOTTIME)) return failed;
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + offset_ns[is_wall ? 0 : 1];
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
