// A CUDA driver (libcuda.so.1) whose device is this CPU: TVM's own CUDA runtime runs programs on it.
//
// A kernel is a shared library that compiler.py made. Blocks run one after another, the threads of a
// block as fibers that give way where they wait for each other: at barriers, and where the lanes of
// a warp meet (shuffles, tensor cores), whose operation then runs once for all of them.
//
// With SIM_CHECK kernels are compiled with -fsanitize=thread, whose hooks are here: every access is
// looked up in a shadow of the memory, one cell a byte. It finds races, accesses outside of buffers
// and misaligned ones, and reads of shared memory that nobody wrote. A fault makes the launch fail,
// and the error's name says what it was. Speed, registers and memory order inside a warp are not
// simulated.
#include <dlfcn.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

struct Dim3 { unsigned x, y, z; };
struct SimThread { Dim3 threadIdx, blockIdx; };  // as device.h has it
using SimOp = void (*)(void** lanes);

namespace {

enum State { RUNS, AT_BARRIER, IN_WARP, DONE };
enum Code { LAUNCH_FAILED = 719, ILLEGAL_ADDRESS = 700, NO_BINARY = 209, NOT_FOUND = 500, INVALID = 1 };
constexpr size_t STACK = 256 << 10, MOST_THREADS = 1024, MOST_SHARED = 256 << 10, WARP = 32;

struct Copy { char* to; const char* from; unsigned bytes; };  // of cp.async

struct Fiber {
  SimThread place;
  State state = DONE;
  bool started = false;
  jmp_buf context;
  char* stack = nullptr;
  int barrier = 0;  // the line of the source where it waits
  void* given = nullptr;  // to the operation of its warp
  SimOp operation = nullptr;
  unsigned mask = 0;
  std::vector<Copy> open;  // since the last commit
  std::vector<std::vector<Copy>> groups;
};

// Who accessed a byte last, and when: barriers, blocks and launches count one clock up.
struct Cell {
  uint64_t wrote = 0, read = 0;
  uint16_t writer = 0, reader = 0;
  bool warp_wrote = false, warp_read = false, many = false, written = false;
};
struct Memory { size_t bytes; std::vector<Cell> cells; };
// `shared`: begin and end of its static shared memory; `count`: of its arguments.
struct Kernel { void (*entry)(void**); char* shared[2]; unsigned count; };

Fiber fibers[MOST_THREADS];
Fiber* now = nullptr;
jmp_buf scheduler;
Kernel* kernel = nullptr;
void** arguments = nullptr;
unsigned threads = 0, block = 0, dynamic_bytes = 0;
char *stacks = nullptr, *dynamic_shared = nullptr;
std::map<uintptr_t, Memory> allocations;
std::vector<Cell> static_cells, dynamic_cells;
uint64_t clock_now = 1, block_start = 1, launch_start = 1;
bool checking = false, in_operation = false, eager = false;
unsigned long races = 0, unwritten = 0, divergent = 0;
int fault = 0;  // the code that ends the launch
std::string said, name_of_error;

// The fault's first sentence is kept: others follow from it.
void say(const char* form, ...) {
  if (!said.empty()) return;
  char text[200];
  va_list words;
  va_start(words, form);
  vsnprintf(text, sizeof text, form, words);
  va_end(words);
  said = text;
}

void leave() {
  if (!_setjmp(now->context)) _longjmp(scheduler, 1);
}

// The launch is over. A fiber does not come back from this, an operation of a warp does.
void fail(int code) {
  fault = code;
  if (in_operation || !now) return;
  now->state = DONE;
  now->started = false;  // its stack is in the middle of something
  leave();
}

void run_kernel() {
  for (;;) {
    kernel->entry(arguments);
    now->state = DONE;
    leave();
  }
}

void resume(Fiber& fiber) {
  now = &fiber;
  if (!_setjmp(scheduler)) {
    if (fiber.started) _longjmp(fiber.context, 1);
    fiber.started = true;
    ucontext_t fresh;
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = fiber.stack;
    fresh.uc_stack.ss_size = STACK;
    makecontext(&fresh, run_kernel, 0);
    setcontext(&fresh);
  }
  now = nullptr;
}

// Whether an access at `at` may run at the same time as one now. Blocks run beside each other, the
// threads of one until the next barrier. Shared memory is of one block, and new to each.
bool concurrent(uint64_t at, bool global) {
  return at == clock_now || (global && at >= launch_start && at < block_start);
}

void access(Cell* cell, const char* name, size_t offset, unsigned bytes, bool write, bool warp, bool global) {
  unsigned me = now - fibers;
  auto ordered = [&](unsigned other, bool other_warp, uint64_t at) {
    if (at < block_start) return false;  // of another block
    return other == me || ((warp || other_warp) && other / WARP == me / WARP);
  };
  for (Cell* end = cell + bytes; cell < end; ++cell, ++offset) {
    const char* what = nullptr;
    unsigned other = 0;
    if (concurrent(cell->wrote, global) && !ordered(cell->writer, cell->warp_wrote, cell->wrote)) {
      what = write ? "two writes" : "a write and a read";
      other = cell->writer;
    } else if (write && concurrent(cell->read, global) &&
               (!ordered(cell->reader, cell->warp_read, cell->read) || (cell->many && !warp))) {
      what = "a read and a write";
      other = cell->reader;
    }
    if (what) {
      ++races;
      say("%s of %s+%zu by threads %u and %u of block %u", what, name, offset, other, me, block);
      return;
    }
    if (write) {
      cell->wrote = clock_now, cell->writer = me, cell->warp_wrote = warp, cell->written = true;
      continue;
    }
    if (!global && !cell->written) {
      ++unwritten;
      say("a read of %s+%zu, which nobody wrote, by thread %u of block %u", name, offset, me, block);
      cell->written = true;  // told once
    }
    cell->many = cell->read == clock_now && (cell->many || !ordered(cell->reader, cell->warp_read, cell->read));
    cell->read = clock_now, cell->reader = me, cell->warp_read = warp;
  }
}

// An access of the fiber, or of its warp; whether it may be done.
bool touch(const void* p, unsigned bytes, bool write, bool warp) {
  const char* at = (const char*)p;
  if (at >= now->stack && at < now->stack + STACK) return true;  // local memory
  if (at >= kernel->shared[0] && at + bytes <= kernel->shared[1]) {
    size_t offset = at - kernel->shared[0];
    access(&static_cells[offset], "shared", offset, bytes, write, warp, false);
    return true;
  }
  if (at >= dynamic_shared && at + bytes <= dynamic_shared + dynamic_bytes) {
    size_t offset = at - dynamic_shared;
    access(&dynamic_cells[offset], "shared.dyn", offset, bytes, write, warp, false);
    return true;
  }
  auto found = allocations.upper_bound((uintptr_t)at);
  if (found != allocations.begin()) {
    auto& [start, memory] = *--found;
    size_t offset = (uintptr_t)at - start;
    if (offset + bytes <= memory.bytes) {
      memory.cells.resize(memory.bytes);
      access(&memory.cells[offset], "global", offset, bytes, write, warp, true);
      return true;
    }
  }
  say("%s of %u bytes outside of all buffers by thread %zu of block %u", write ? "write" : "read", bytes, now - fibers, block);
  fail(ILLEGAL_ADDRESS);
  return false;
}

void hook(const void* p, unsigned bytes, bool write, bool aligned) {
  // `in_operation`: what an operation of a warp touches it tells itself (sim_touch)
  if (!checking || !now || in_operation) return;
  if (aligned && (uintptr_t)p % bytes) {  // no GPU takes it
    say("misaligned access of %u bytes by thread %zu of block %u", bytes, now - fibers, block);
    fail(ILLEGAL_ADDRESS);
  }
  touch(p, bytes, write, false);
}

// Runs the operation of a warp once all its lanes are there; whether it did.
bool meet(unsigned first) {
  void* lanes[WARP] = {};
  unsigned count = std::min<unsigned>(WARP, threads - first), mask = 0;
  SimOp operation = nullptr;
  for (unsigned l = 0; l < count; ++l)
    if (Fiber& fiber = fibers[first + l]; fiber.state == IN_WARP) operation = fiber.operation, mask |= fiber.mask;
  if (!operation) return false;
  for (unsigned l = 0; l < count; ++l) {
    Fiber& fiber = fibers[first + l];
    if (fiber.state == DONE || !(mask >> l & 1)) continue;
    if (fiber.state != IN_WARP || fiber.operation != operation) return false;
    lanes[l] = fiber.given;
  }
  now = &fibers[first], in_operation = true;
  operation(lanes);
  now = nullptr, in_operation = false;
  for (unsigned l = 0; l < count; ++l)
    if (lanes[l]) fibers[first + l].state = RUNS;
  return true;
}

// Lets threads pass a barrier that all of them wait at; false where none is left.
bool pass_barrier() {
  unsigned waiting = 0, done = 0;
  int place = 0;
  bool same = true;
  for (unsigned i = 0; i < threads; ++i) {
    done += fibers[i].state == DONE;
    if (fibers[i].state != AT_BARRIER) continue;
    same &= !waiting++ || fibers[i].barrier == place;
    place = fibers[i].barrier;
  }
  if (done == threads) return false;
  if (waiting + done != threads) {
    say("threads of block %u wait for each other for ever", block);
    fail(LAUNCH_FAILED);
    return false;
  }
  if (done || !same) {
    ++divergent;
    say("a barrier of block %u that %u of %u threads meet%s", block, waiting, threads, same ? "" : " in different places");
  }
  for (unsigned i = 0; i < threads; ++i)
    if (fibers[i].state == AT_BARRIER) fibers[i].state = RUNS;
  ++clock_now;
  return true;
}

// `turn`: the order of the threads; `random`: another one whenever they wait.
void run_block(std::vector<unsigned>& turn, std::mt19937* random) {
  size_t static_bytes = kernel->shared[1] - kernel->shared[0];
  memset(kernel->shared[0], 0xff, static_bytes);  // as floats and halves NaN
  memset(dynamic_shared, 0xff, dynamic_bytes);
  if (checking) static_cells.assign(static_bytes, {}), dynamic_cells.assign(dynamic_bytes, {});
  block_start = ++clock_now;
  for (;;) {
    if (random) std::shuffle(turn.begin(), turn.end(), *random);
    for (unsigned i : turn) {
      if (fibers[i].state == RUNS) resume(fibers[i]);
      if (fault) return;
    }
    bool met = false;
    for (unsigned first = 0; first < threads && !fault; first += WARP) met |= meet(first);
    if (fault || (!met && !pass_barrier())) return;
  }
}

int error(int code, const std::string& name) {
  name_of_error = name;
  return code;
}

// What a launch found, as the code and the name of an error.
int verdict() {
  std::string name = fault == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_LAUNCH_FAILED";
  if (!fault && !races && !unwritten && !divergent) return 0;
  char counts[120];
  snprintf(counts, sizeof counts, " (simulated: %lu races, %lu unwritten, %lu divergent): ", races, unwritten, divergent);
  return error(fault ? fault : LAUNCH_FAILED, name + counts + said);
}

void do_copy(const Copy& c) {
  if (checking) hook(c.from, c.bytes, false, true), hook(c.to, c.bytes, true, true);
  memcpy(c.to, c.from, c.bytes);
}

const char* option(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

}  // namespace

// What kernels call.
API SimThread sim_thread() { return now->place; }
API int sim_lane() { return (now - fibers) % WARP; }
API char* sim_dynamic_shared() { return dynamic_shared; }
API void sim_barrier(int line) {
  now->state = AT_BARRIER, now->barrier = line;
  leave();
}
API void sim_meet(void* given, SimOp operation, unsigned mask) {
  now->state = IN_WARP, now->given = given, now->operation = operation, now->mask = mask;
  leave();
}
API unsigned sim_active() {
  unsigned first = (now - fibers) / WARP * WARP, mask = 0;
  for (unsigned l = 0; l < WARP && first + l < threads; ++l) mask |= (fibers[first + l].state != DONE) << l;
  return mask;
}
API bool sim_touch(const void* p, unsigned bytes, bool write) { return !checking || touch(p, bytes, write, true); }
// An asynchronous copy is done as late as it may be, when it is waited for, and its target is
// spoiled until then: so who reads too early, and who never waits, has NaN. SIM_EAGER: at once.
API void sim_cp_async(void* to, const void* from, unsigned bytes) {
  Copy copy{(char*)to, (const char*)from, bytes};
  if (eager) return do_copy(copy);
  if (checking) {
    hook(to, bytes, true, true);
    for (unsigned i = 0; i < bytes; ++i) {
      char* at = copy.to + i;
      bool is_static = at >= kernel->shared[0] && at < kernel->shared[1];
      (is_static ? static_cells[at - kernel->shared[0]] : dynamic_cells[at - dynamic_shared]).written = false;
    }
  }
  memset(to, 0xff, bytes);
  now->open.push_back(copy);
}
API void sim_cp_commit() {
  now->groups.push_back(std::move(now->open));
  now->open.clear();
}
API void sim_cp_wait(unsigned left) {
  auto& groups = now->groups;
  while (groups.size() > left) {
    for (const Copy& copy : groups.front()) do_copy(copy);
    groups.erase(groups.begin());
  }
}

// What the compiler puts before every access.
#define HOOKS(n)                                                               \
  API void __tsan_read##n(void* p) { hook(p, n, false, true); }                \
  API void __tsan_write##n(void* p) { hook(p, n, true, true); }                \
  API void __tsan_unaligned_read##n(void* p) { hook(p, n, false, false); }     \
  API void __tsan_unaligned_write##n(void* p) { hook(p, n, true, false); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
API void __tsan_read_range(void* p, size_t n) { hook(p, n, false, false); }
API void __tsan_write_range(void* p, size_t n) { hook(p, n, true, false); }
API void __tsan_func_entry(void*) {}
API void __tsan_func_exit() {}
API void __tsan_init() {}

// What runtime.cc calls.
API void* sim_alloc(size_t bytes) {
  void* p = aligned_alloc(256, (bytes + 511) / 256 * 256);
  if (!p) return nullptr;
  memset(p, 0xff, bytes);
  allocations[(uintptr_t)p] = {bytes, {}};
  return p;
}
API void sim_free(void* p) {
  allocations.erase((uintptr_t)p);
  free(p);
}

// A graph: the work that a stream took on while it was captured, done at every launch of the graph.
using Graph = std::vector<std::function<int()>>;
static Graph* captured = nullptr;
API void sim_begin_capture() { captured = new Graph; }
API void* sim_end_capture() {
  Graph* whole = captured;
  captured = nullptr;
  return whole;
}
API int sim_launch_graph(void* graph) {
  for (auto& work : *(Graph*)graph)
    if (int failed = work()) return failed;
  return 0;
}
API bool sim_captures() { return captured; }
API int sim_move(void* to, const void* from, size_t bytes) {
  auto work = [=] { return memmove(to, from, bytes), 0; };
  return captured ? captured->push_back(work), 0 : work();
}

// The driver.
API int cuModuleLoadData(void** out, const void* image) {
  const char* bytes = (const char*)image;
  if (memcmp(bytes, "SIMGPU", 6)) return error(NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU");
  uint64_t size;
  memcpy(&size, bytes + 8, sizeof size);
  char path[] = "/tmp/cudasim-XXXXXX";
  int file = mkstemp(path);
  bool whole = write(file, bytes + 16, size) == (ssize_t)size;
  close(file);
  // Kernels use symbols of this library, which TVM loads for itself alone.
  Dl_info here;
  if (dladdr((void*)sim_barrier, &here)) dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  *out = whole ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  return *out ? 0 : error(NO_BINARY, std::string("CUDA_ERROR_INVALID_IMAGE: ") + dlerror());
}
API int cuModuleUnload(void* module) { return dlclose(module); }
API int cuModuleGetFunction(void** out, void* module, const char* name) {
  auto entry = (void (*)(void**))dlsym(module, (std::string("sim_entry_") + name).c_str());
  auto count = (unsigned (*)())dlsym(module, (std::string("sim_count_") + name).c_str());
  auto range = (void (*)(char**))dlsym(module, "sim_shared_range");
  if (!entry || !count || !range) return error(NOT_FOUND, "CUDA_ERROR_NOT_FOUND");
  auto found = new Kernel{entry, {}, count()};  // as long as the process lives: TVM never gives it back
  range(found->shared);
  *out = found;
  return 0;
}
API int cuFuncSetAttribute(void*, int, int) { return 0; }

struct Launch { Dim3 grid, block; unsigned shared; void* stream; void* attributes; unsigned count; };
API int cuLaunchKernelEx(const Launch* launch, void* function, void** values, void** more) {
  if (captured) {  // the arguments are those of now, what they point to is that of the launch
    std::vector<uint64_t> kept;
    for (unsigned i = 0; i < ((Kernel*)function)->count; ++i) kept.push_back(*(uint64_t*)values[i]);
    captured->push_back([launch = *launch, function, kept, more]() mutable {
      std::vector<void*> again;
      for (uint64_t& value : kept) again.push_back(&value);
      return cuLaunchKernelEx(&launch, function, again.data(), more);
    });
    return 0;
  }
  if (!stacks) {
    auto mapped = [](size_t n) { return (char*)mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); };
    stacks = mapped(STACK * MOST_THREADS), dynamic_shared = mapped(MOST_SHARED);
  }
  const Dim3 &grid = launch->grid, &size = launch->block;
  kernel = (Kernel*)function, arguments = values;
  threads = size.x * size.y * size.z, dynamic_bytes = launch->shared;
  if (!threads || threads > MOST_THREADS || dynamic_bytes > MOST_SHARED) return error(INVALID, "CUDA_ERROR_INVALID_VALUE");
  std::string order = option("SIM_ORDER");
  checking = *option("SIM_CHECK"), eager = *option("SIM_EAGER");
  std::mt19937 random(0);
  std::vector<unsigned> turn(threads);
  for (unsigned i = 0; i < threads; ++i) turn[i] = order == "backward" ? threads - 1 - i : i;
  fault = block = 0, races = unwritten = divergent = 0, said.clear();
  launch_start = ++clock_now;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x && !fault; ++x, ++block) {
        for (unsigned i = 0; i < threads; ++i) {
          Fiber& fiber = fibers[i];
          fiber.stack = stacks + STACK * i, fiber.state = RUNS;
          fiber.place = {{i % size.x, i / size.x % size.y, i / (size.x * size.y)}, {x, y, z}};
          fiber.open.clear(), fiber.groups.clear();
        }
        run_block(turn, order == "random" ? &random : nullptr);
      }
  if (fault) for (Fiber& fiber : fibers) fiber.started = false;  // some are in the middle of a kernel
  return verdict();
}
API int cuGetErrorName(int, const char** name) {
  *name = name_of_error.c_str();
  return 0;
}
API int cuGetErrorString(int, const char** text) {
  *text = name_of_error.c_str();
  return 0;
}
API int cuDeviceGetName(char* name, int size, int) {
  snprintf(name, size, "%s", option("SIM_NAME"));
  return 0;
}
API int cuTensorMapEncodeTiled() { return 801; }  // not supported: no TMA
