// CUDA's runtime (libcudart.so.13) above driver.cc, as far as TVM uses it: one device, streams that
// do everything at once. SIM_ARCH: its compute capability, 80 of 8.0.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#define API extern "C" __attribute__((visibility("default")))
#define NOTHING(name) API int name() { return 0; }  // C functions: other arguments do no harm
#define UNSUPPORTED(name) API int name() { return 801; }

extern "C" void* sim_alloc(size_t bytes);
extern "C" void sim_free(void* p);
extern "C" int sim_move(void* to, const void* from, size_t bytes);
extern "C" void sim_begin_capture();
extern "C" void* sim_end_capture();
extern "C" int sim_launch_graph(void* graph);
extern "C" bool sim_captures();
extern "C" int cuDeviceGetName(char* name, int size, int device);

using Clock = std::chrono::steady_clock;
constexpr size_t MEMORY = size_t(8) << 30;

// CUDA's own: a process that was forked from one with a device has none (initialization error).
static int forked() {
  static const pid_t first = getpid();
  return getpid() == first ? 0 : 3;
}
API int cudaGetDeviceCount(int* count) { return *count = 1, forked(); }
API int cudaGetDevice(int* device) { return *device = 0, forked(); }
API int cudaSetDevice(int device) { return device == 0 ? forked() : 101; }
API int cudaDeviceGetAttribute(int* value, int attribute, int) {
  const char* given = getenv("SIM_ARCH");
  int architecture = given ? atoi(given) : 80;
  switch (attribute) {  // cudaDeviceAttr
    case 1: case 2: case 3: *value = 1024; break;  // threads of a block
    case 4: *value = 64; break;  // its third extent
    case 8: *value = 49152; break;  // static shared memory of a block
    case 10: *value = 32; break;  // lanes of a warp
    case 12: *value = 65536; break;  // registers of a block
    case 13: *value = 1000000; break;  // clock, kHz
    case 16: *value = 1; break;  // multiprocessors
    case 38: *value = 1 << 20; break;  // bytes of the second-level cache
    case 75: *value = architecture / 10; break;
    case 76: *value = architecture % 10; break;
    case 97: *value = 232448; break;  // shared memory of a block that asks for it
    default: *value = 0;
  }
  return 0;
}
API int cudaGetDeviceProperties(char* found, int device) {  // name[256], uuid[16], luid[8], masks, bytes
  memcpy(found + 288, &MEMORY, sizeof MEMORY);
  return cuDeviceGetName(found, 256, device);
}
constexpr int NOT_IN_A_CAPTURE = 900;  // what CUDA says of these while a stream is captured
API int cudaMalloc(void** p, size_t bytes) {
  if (sim_captures()) return NOT_IN_A_CAPTURE;
  return (*p = sim_alloc(bytes ? bytes : 1)) ? 0 : 2;
}
API int cudaFree(void* p) { return sim_captures() ? NOT_IN_A_CAPTURE : (sim_free(p), 0); }
API int cudaStreamSynchronize(void*) { return sim_captures() ? NOT_IN_A_CAPTURE : 0; }
API int cudaMallocHost(void** p, size_t bytes) { return (*p = malloc(bytes ? bytes : 1)) ? 0 : 2; }
API int cudaFreeHost(void* p) { return free(p), 0; }
API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) { return sim_move(to, from, bytes); }
API int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) { return sim_move(to, from, bytes); }
API int cudaMemGetInfo(size_t* unused, size_t* all) { return *unused = *all = MEMORY, 0; }
API int cudaEventCreate(void** event) { return *event = new Clock::time_point, 0; }
API int cudaEventDestroy(void* event) { return delete (Clock::time_point*)event, 0; }
API int cudaEventRecord(void* event, void*) { return *(Clock::time_point*)event = Clock::now(), 0; }
API int cudaEventElapsedTime(float* ms, void* from, void* to) {
  std::chrono::duration<float, std::milli> passed = *(Clock::time_point*)to - *(Clock::time_point*)from;
  return *ms = passed.count(), 0;
}
API int cudaStreamCreate(void** stream) { return *stream = (void*)8, 0; }
API int cudaStreamCreateWithFlags(void** stream, unsigned) { return *stream = (void*)8, 0; }
API const char* cudaGetErrorName(int) { return "cudaError"; }
API const char* cudaGetErrorString(int) { return "an error of the simulated device"; }
NOTHING(cudaEventSynchronize) NOTHING(cudaStreamDestroy)
NOTHING(cudaStreamWaitEvent) NOTHING(cudaGetLastError) NOTHING(cudaPeekAtLastError)
NOTHING(cudaGraphDestroy) NOTHING(cudaGraphExecDestroy)  // a graph lives as long as the process
API int cudaStreamBeginCapture(void*, int) { return sim_begin_capture(), 0; }
API int cudaStreamEndCapture(void*, void** graph) { return *graph = sim_end_capture(), 0; }
API int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) { return *executable = graph, 0; }
API int cudaGraphLaunch(void* executable, void*) { return sim_launch_graph(executable); }
