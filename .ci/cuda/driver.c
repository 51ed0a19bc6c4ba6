/* A stand-in for NVIDIA's driver: lets a binary built with `--features cuda` run on a machine
 * without a GPU, to see every kernel that it compiles and to count what it asks of the driver.
 *
 *     cc -shared -fPIC -O1 -Wl,-soname,libcuda.so.1 -o libcuda.so.1 driver.c
 *     LD_LIBRARY_PATH=. STANDIN_PTX=some/folder ./promises --test-threads 1 cuda::
 *
 * It answers as one H100 would. Memory is the host's, and copies copy, but a launch does nothing:
 * what was not copied is zero, results are wrong, and many tests fail. Of worth are
 *
 * - the folder of $STANDIN_PTX, which gets the PTX of each distinct module loaded, and
 * - the file of $STANDIN_COUNTS, where the counts lie that `enum count` names, eight bytes each, for each of
 *   sixteen streams, and
 * - that of $STANDIN_LAUNCHES, which gets the name of every kernel that is launched.
 *
 * With $STANDIN_ONES=1 memory is full of ones in f32 instead, so that norms are finite.
 * $STANDIN_CAPABILITY is the compute capability (90), $STANDIN_DRIVER the version (13000), and
 * $STANDIN_DEVICES the number of devices (1).
 *
 * There are the calls that cubecl-cuda 0.11 makes through cudarc 0.19, graph capture aside.
 * cudarc loads each by name when it is first called, so one that lacks panics with its name.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is counted: calls (those of our own kernel among the launches), bytes of the copies to the device, from it
 * and on it, how often the host waited for a stream, and how often a stream was made to wait for another. */
enum count { LAUNCHES, UPDATES, ALLOCATIONS, TO_DEVICE, FROM_DEVICE, ON_DEVICE, WAITS, STREAM_WAITS, COUNTS };

/* A stream is its number plus one. What is of none, or of more than there are, counts as the first. */
enum { STREAMS = 16 };
static uint64_t here[STREAMS * COUNTS], *counts = here;

__attribute__((constructor)) static void share_counts(void) {
    const char *path = getenv("STANDIN_COUNTS");
    if (!path) return;
    int file = open(path, O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, sizeof here)) perror(path), abort();
    counts = mmap(NULL, sizeof here, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED) perror(path), abort();
}

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int number_of(const void *stream) {
    uintptr_t number = (uintptr_t)stream;
    return number > 0 && number <= STREAMS ? number - 1 : 0;
}

static void count(enum count what, uint64_t by, const void *stream) {
    __atomic_fetch_add(&counts[number_of(stream) * COUNTS + what], by, __ATOMIC_RELAXED);
}

enum { OK = 0, OUT_OF_MEMORY = 2, NO_SUCH_DEVICE = 101, NOT_SUPPORTED = 801 };
typedef unsigned long long ptr; /* CUdeviceptr */

#define HANDLE ((void *)1)
#define CALL(name, ...) int name(__VA_ARGS__)
#define NOTHING(name) \
    CALL(name, void) { return OK; } /* the caller's arguments go unread */

static int alloc(void **p, size_t len) {
    count(ALLOCATIONS, 1, NULL);
    size_t words = (len + 3) / 4;
    uint32_t *memory = *p = malloc(4 * words);
    if (!memory) return OUT_OF_MEMORY;
    uint32_t fill = number("STANDIN_ONES", 0) ? 0x3f800000 : 0;
    for (size_t word = 0; word < words; word++) memory[word] = fill;
    return OK;
}
static int copy(enum count way, void *to, const void *from, size_t len, void *stream) {
    return count(way, len, stream), memcpy(to, from, len), OK;
}
#define AT(p) ((void *)(uintptr_t)(p))

/* The driver and its one device. */
NOTHING(cuInit)
CALL(cuDriverGetVersion, int *version) { return *version = number("STANDIN_DRIVER", 13000), OK; }
CALL(cuDeviceGetCount, int *count) { return *count = number("STANDIN_DEVICES", 1), OK; }
CALL(cuDeviceGet, int *device, int index) {
    return *device = index, index < number("STANDIN_DEVICES", 1) ? OK : NO_SUCH_DEVICE;
}
CALL(cuDeviceGetName, char *name, int len, int device) {
    return snprintf(name, len, "NVIDIA H100 (stand-in %d)", device), OK;
}
CALL(cuDeviceGetPCIBusId, void) { return NOT_SUPPORTED; } /* none to be watched */
CALL(cuDeviceTotalMem_v2, size_t *bytes) { return *bytes = (size_t)80 << 30, OK; }
CALL(cuMemGetInfo_v2, size_t *left, size_t *all) { return *left = *all = (size_t)80 << 30, OK; }
CALL(cuDeviceGetAttribute, int *value, int attribute) {
    int capability = number("STANDIN_CAPABILITY", 90);
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;    /* threads per block, in x, in y */
    case 4: *value = 64; break;                      /* in z */
    case 5: *value = 2147483647; break;              /* blocks in x */
    case 6: case 7: *value = 65535; break;           /* in y, in z */
    case 10: *value = 32; break;                     /* warp */
    case 16: *value = 132; break;                    /* multiprocessors */
    case 75: *value = capability / 10; break;        /* compute capability, major */
    case 76: *value = capability % 10; break;        /* and minor */
    case 97: *value = 232448; break;                 /* shared memory per block, opt-in */
    case 115: *value = 1; break;                     /* memory pools */
    default: *value = 0;
    }
    return OK;
}
CALL(cuGetErrorName, int code, const char **name) { return *name = "stand-in", (void)code, OK; }
CALL(cuGetErrorString, int code, const char **text) { return *text = "stand-in", (void)code, OK; }

/* Contexts, streams and events: all work is done by the time that a call returns. */
CALL(cuDevicePrimaryCtxRetain, void **context) { return *context = HANDLE, OK; }
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuCtxSetCurrent)
CALL(cuCtxGetCurrent, void **context) { return *context = HANDLE, OK; }
CALL(cuCtxSynchronize, void) { return count(WAITS, 1, NULL), OK; }
CALL(cuCtxGetStreamPriorityRange, int *least, int *most) { return *least = *most = 0, OK; }
static int create(void **stream) {
    static uintptr_t streams;
    return *stream = (void *)__atomic_add_fetch(&streams, 1, __ATOMIC_RELAXED), OK;
}
CALL(cuStreamCreate, void **stream) { return create(stream); }
CALL(cuStreamCreateWithPriority, void **stream) { return create(stream); }
NOTHING(cuStreamDestroy_v2)
CALL(cuStreamSynchronize, void *stream) { return count(WAITS, 1, stream), OK; }
/* An event holds the stream that it was recorded in. */
CALL(cuEventCreate, void ***event) { return (*event = calloc(1, sizeof **event)) ? OK : OUT_OF_MEMORY; }
CALL(cuEventDestroy_v2, void **event) { return free(event), OK; }
CALL(cuEventRecord, void **event, void *stream) { return *event = stream, OK; }
NOTHING(cuEventQuery)
CALL(cuEventSynchronize, void **event) { return count(WAITS, 1, *event), OK; }
CALL(cuStreamWaitEvent, void *stream, void **event) {
    if (stream != *event) count(STREAM_WAITS, 1, stream);
    return OK;
}
CALL(cuEventElapsedTime_v2, float *ms) { return *ms = 0.01f, OK; }

/* Memory. */
CALL(cuMemAlloc_v2, ptr *p, size_t len) { return alloc((void **)p, len); }
CALL(cuMemAllocAsync, ptr *p, size_t len) { return alloc((void **)p, len); }
CALL(cuMemAllocHost_v2, void **p, size_t len) { return alloc(p, len); }
CALL(cuMemFree_v2, ptr p) { return free(AT(p)), OK; }
CALL(cuMemFreeAsync, ptr p) { return free(AT(p)), OK; }
CALL(cuMemFreeHost, void *p) { return free(p), OK; }
CALL(cuMemsetD8Async, ptr p, unsigned char byte, size_t len) { return memset(AT(p), byte, len), OK; }
CALL(cuMemcpyHtoDAsync_v2, ptr to, const void *from, size_t len, void *stream) {
    return copy(TO_DEVICE, AT(to), from, len, stream);
}
CALL(cuMemcpyDtoHAsync_v2, void *to, ptr from, size_t len, void *stream) {
    return copy(FROM_DEVICE, to, AT(from), len, stream);
}
CALL(cuMemcpyDtoDAsync_v2, ptr to, ptr from, size_t len, void *stream) {
    return copy(ON_DEVICE, AT(to), AT(from), len, stream);
}

/* CUDA_MEMCPY2D: kind 1 is the host, 2 the device. */
struct side { size_t x, y; unsigned kind; void *host; ptr device; void *array; size_t pitch; };
struct copy2d { struct side from, to; size_t width, height; };
CALL(cuMemcpy2DAsync_v2, const struct copy2d *c, void *stream) {
    const char *from = c->from.kind == 1 ? c->from.host : AT(c->from.device);
    char *to = c->to.kind == 1 ? c->to.host : AT(c->to.device);
    enum count way = c->from.kind == 1 ? TO_DEVICE : c->to.kind == 1 ? FROM_DEVICE : ON_DEVICE;
    for (size_t row = 0; row < c->height; row++)
        copy(way, to + (c->to.y + row) * c->to.pitch + c->to.x,
             from + (c->from.y + row) * c->from.pitch + c->from.x, c->width, stream);
    return OK;
}

/* Modules: named by a hash of their text, so that each is kept once. */
CALL(cuModuleLoadData, void **module, const char *ptx) {
    const char *folder = getenv("STANDIN_PTX");
    char path[4096];
    uint64_t hash = 0xcbf29ce484222325;
    for (const char *c = ptx; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    if (folder) {
        snprintf(path, sizeof path, "%s/%016llx.ptx", folder, (unsigned long long)hash);
        FILE *file = fopen(path, "w");
        if (!file || fputs(ptx, file) < 0 || fclose(file)) perror(path), abort();
    }
    return *module = HANDLE, OK;
}
NOTHING(cuModuleUnload)
/* A function is its name. */
CALL(cuModuleGetFunction, char **function, void *module, const char *name) {
    return (*function = strdup(name)) ? OK : OUT_OF_MEMORY;
}
NOTHING(cuFuncSetAttribute)
CALL(cuLaunchKernel, const char *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
     unsigned bz, unsigned shared, void *stream) {
    static FILE *names;
    const char *path = getenv("STANDIN_LAUNCHES");
    if (path && (names || (names = fopen(path, "a")))) fprintf(names, "%s\n", function), fflush(names);
    if (!strncmp(function, "update_f_", 9)) count(UPDATES, 1, stream);
    return count(LAUNCHES, 1, stream), OK;
}
