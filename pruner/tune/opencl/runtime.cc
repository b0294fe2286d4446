// TVM's OpenCL runtime, which its wheel was built without: device, modules, timer.
//
// Compiled once by g++ against the wheel's headers (pruner/tune/opencl/runtime.py). libOpenCL is
// opened at run time, so neither its headers nor a driver is needed to compile.
//
// Environment, read once:
//   PRUNER_OPENCL_LIBRARY  libOpenCL to open; by default the system's
//   PRUNER_OPENCL_DEVICE   number of the device that is TVM's opencl:0, in the order of `Devices`

#include <dlfcn.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/timer.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;
using tvm::Device;
using tvm::runtime::DeviceAPI;
using tvm::runtime::DeviceAttrKind;
using tvm::runtime::Timer;
using tvm::runtime::TimerNode;

namespace {

// The part of CL/cl.h (OpenCL 1.2) that is used here.
using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_platform_id = struct PlatformTag*;
using cl_device_id = struct DeviceTag*;
using cl_context = struct ContextTag*;
using cl_command_queue = struct QueueTag*;
using cl_mem = struct MemoryTag*;
using cl_program = struct ProgramTag*;
using cl_kernel = struct KernelTag*;
using cl_event = struct EventTag*;

constexpr cl_ulong CL_DEVICE_TYPE_CPU = 1 << 1, CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_ulong CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
constexpr cl_uint CL_PLATFORM_NAME = 0x0902;
constexpr cl_uint CL_DEVICE_TYPE = 0x1000, CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004, CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F, CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_NAME = 0x102B, CL_DEVICE_VENDOR = 0x102C, CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F, CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_ulong CL_QUEUE_PROFILING_ENABLE = 1 << 1, CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183, CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;
constexpr cl_uint CL_PROFILING_COMMAND_START = 0x1282, CL_PROFILING_COMMAND_END = 0x1283;

#define CL_FUNCTIONS(F)                                                                            \
  F(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id*, cl_uint*))                                \
  F(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void*, size_t*))                  \
  F(cl_int, clGetDeviceIDs, (cl_platform_id, cl_ulong, cl_uint, cl_device_id*, cl_uint*))          \
  F(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void*, size_t*))                      \
  F(cl_context, clCreateContext,                                                                   \
    (const intptr_t*, cl_uint, const cl_device_id*, void*, void*, cl_int*))                        \
  F(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_ulong, cl_int*))         \
  F(cl_mem, clCreateBuffer, (cl_context, cl_ulong, size_t, void*, cl_int*))                        \
  F(cl_int, clReleaseMemObject, (cl_mem))                                                          \
  F(cl_int, clEnqueueReadBuffer,                                                                   \
    (cl_command_queue, cl_mem, cl_uint, size_t, size_t, void*, cl_uint, const cl_event*,           \
     cl_event*))                                                                                   \
  F(cl_int, clEnqueueWriteBuffer,                                                                  \
    (cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void*, cl_uint, const cl_event*,     \
     cl_event*))                                                                                   \
  F(cl_int, clEnqueueCopyBuffer,                                                                   \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*,           \
     cl_event*))                                                                                   \
  F(cl_program, clCreateProgramWithSource,                                                         \
    (cl_context, cl_uint, const char**, const size_t*, cl_int*))                                   \
  F(cl_int, clBuildProgram,                                                                        \
    (cl_program, cl_uint, const cl_device_id*, const char*, void*, void*))                         \
  F(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))    \
  F(cl_int, clReleaseProgram, (cl_program))                                                        \
  F(cl_kernel, clCreateKernel, (cl_program, const char*, cl_int*))                                 \
  F(cl_int, clReleaseKernel, (cl_kernel))                                                          \
  F(cl_int, clGetKernelWorkGroupInfo,                                                              \
    (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                                    \
  F(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void*))                             \
  F(cl_int, clEnqueueNDRangeKernel,                                                                \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint,   \
     const cl_event*, cl_event*))                                                                  \
  F(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void*, size_t*))                  \
  F(cl_int, clReleaseEvent, (cl_event))                                                            \
  F(cl_int, clFinish, (cl_command_queue))

#define DECLARE(R, NAME, ARGUMENTS) R(*NAME) ARGUMENTS = nullptr;
CL_FUNCTIONS(DECLARE)
#undef DECLARE

// Words by which the workers tell kinds of failures apart.
std::string Named(cl_int code) {
  switch (code) {
    case -1: return "CL_DEVICE_NOT_FOUND";
    case -2: return "CL_DEVICE_NOT_AVAILABLE";
    case -4: return "CL_MEM_OBJECT_ALLOCATION_FAILURE: out of memory";
    case -5: return "CL_OUT_OF_RESOURCES";
    case -6: return "CL_OUT_OF_HOST_MEMORY: out of memory";
    case -11: return "CL_BUILD_PROGRAM_FAILURE";
    case -33: return "CL_INVALID_DEVICE";
    case -34: return "CL_INVALID_CONTEXT";
    case -36: return "CL_INVALID_COMMAND_QUEUE";
    case -52: return "CL_INVALID_KERNEL_ARGS";
    case -54: return "CL_INVALID_WORK_GROUP_SIZE: too many work items a group";
    case -55: return "CL_INVALID_WORK_ITEM_SIZE: too many work items a group";
    case -61: return "CL_INVALID_BUFFER_SIZE: out of memory";
    default: return "error " + std::to_string(code);
  }
}

void Check(cl_int code, const char* what) {
  if (code != 0) TVM_FFI_THROW(RuntimeError) << "OpenCL: " << what << ": " << Named(code);
}

struct Buffer {
  cl_mem memory;  // null where launches are only recorded
  size_t bytes;
  size_t number;  // in the order of allocation since the mode was set
};

// How kernels are launched: run; compiled and checked; or only written down, without a device.
enum Mode { kRun = 0, kCompile = 1, kRecord = 2 };

// The driver, opened once; the chosen device has a context and a queue once something needs them.
class Driver {
 public:
  std::vector<cl_platform_id> platforms;  // of each device
  std::vector<cl_device_id> devices;      // GPUs first, then accelerators, then CPUs
  std::string why;                        // there is none
  Mode mode = kRun;
  std::ostringstream launches;   // in mode kRecord, a line each
  size_t buffers = 0;            // allocated since the mode was set
  std::vector<cl_event> events;  // of launches that are timed
  bool timing = false;

  static Driver& Get() {
    static Driver* only = new Driver();  // never destroyed: drivers may be unloaded before us
    return *only;
  }

  bool is_there() const { return chosen_ < devices.size(); }
  cl_device_id device() {
    if (!is_there()) {
      TVM_FFI_THROW(RuntimeError) << "OpenCL: CL_DEVICE_NOT_FOUND: no device " << chosen_ << " "
                                  << why;
    }
    return devices[chosen_];
  }
  cl_context context() {
    Open();
    return context_;
  }
  cl_command_queue queue() {
    Open();
    return queue_;
  }
  void Finish() {
    if (queue_ != nullptr) Check(clFinish(queue_), "clFinish");
  }
  void Wait() {  // for destructors, which must not throw
    if (queue_ != nullptr) clFinish(queue_);
  }

  static std::string Text(cl_device_id device, cl_uint what) {
    size_t size = 0;
    clGetDeviceInfo(device, what, 0, nullptr, &size);
    std::vector<char> out(size + 1, 0);
    clGetDeviceInfo(device, what, size, out.data(), nullptr);
    return out.data();
  }
  template <class T>
  static int64_t Number(cl_device_id device, cl_uint what) {
    T out = 0;
    clGetDeviceInfo(device, what, sizeof out, &out, nullptr);
    return static_cast<int64_t>(out);
  }

 private:
  Driver() {
    const char* given = std::getenv("PRUNER_OPENCL_DEVICE");
    chosen_ = given ? std::strtoul(given, nullptr, 10) : 0;
    given = std::getenv("PRUNER_OPENCL_LIBRARY");
    void* library = dlopen(given ? given : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why = dlerror();
      return;
    }
#define LOAD(R, NAME, ARGUMENTS) \
  if (!(NAME = reinterpret_cast<R(*) ARGUMENTS>(dlsym(library, #NAME)))) why = dlerror();
    CL_FUNCTIONS(LOAD)
#undef LOAD
    if (!why.empty()) return;
    cl_uint number = 0;
    if (clGetPlatformIDs(0, nullptr, &number) != 0 || number == 0) {
      why = "no driver is installed";
      return;
    }
    std::vector<cl_platform_id> all(number);
    clGetPlatformIDs(number, all.data(), nullptr);
    std::sort(all.begin(), all.end());  // the loader of pyopencl's wheel names its driver twice
    all.erase(std::unique(all.begin(), all.end()), all.end());
    for (cl_ulong type : {CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CPU}) {
      for (cl_platform_id platform : all) {
        cl_uint more = 0;
        if (clGetDeviceIDs(platform, type, 0, nullptr, &more) != 0 || more == 0) continue;
        std::vector<cl_device_id> found(more);
        clGetDeviceIDs(platform, type, more, found.data(), nullptr);
        devices.insert(devices.end(), found.begin(), found.end());
        platforms.insert(platforms.end(), more, platform);
      }
    }
    if (devices.empty()) why = "its drivers have no device";
  }

  void Open() {
    if (queue_ != nullptr) return;
    cl_device_id one = device();
    cl_int code = 0;
    context_ = clCreateContext(nullptr, 1, &one, nullptr, nullptr, &code);
    Check(code, "clCreateContext");
    queue_ = clCreateCommandQueue(context_, one, CL_QUEUE_PROFILING_ENABLE, &code);
    Check(code, "clCreateCommandQueue");
  }

  size_t chosen_ = 0;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
};

// A device a line, fields separated by tabs; device.py names them.
ffi::String Devices() {
  Driver& cl = Driver::Get();
  std::ostringstream out;
  for (size_t i = 0; i < cl.devices.size(); ++i) {
    cl_device_id one = cl.devices[i];
    char platform[1024] = {0};
    clGetPlatformInfo(cl.platforms[i], CL_PLATFORM_NAME, sizeof platform - 1, platform, nullptr);
    bool halves = Driver::Text(one, CL_DEVICE_EXTENSIONS).find("cl_khr_fp16") != std::string::npos;
    out << platform << '\t' << Driver::Text(one, CL_DEVICE_VENDOR) << '\t'
        << Driver::Text(one, CL_DEVICE_NAME) << '\t' << Driver::Text(one, CL_DRIVER_VERSION) << '\t'
        << Driver::Number<cl_ulong>(one, CL_DEVICE_TYPE) << '\t'
        << Driver::Number<cl_uint>(one, CL_DEVICE_MAX_COMPUTE_UNITS) << '\t'
        << Driver::Number<cl_uint>(one, CL_DEVICE_MAX_CLOCK_FREQUENCY) << '\t'
        << Driver::Number<size_t>(one, CL_DEVICE_MAX_WORK_GROUP_SIZE) << '\t'
        << Driver::Number<cl_ulong>(one, CL_DEVICE_LOCAL_MEM_SIZE) << '\t' << halves << '\n';
  }
  return out.str();
}

class OpenCLDevice final : public DeviceAPI {
 public:
  void SetDevice(Device) final {}
  void GetAttr(Device device, DeviceAttrKind kind, ffi::Any* value) final {
    Driver& cl = Driver::Get();
    bool there = device.device_id == 0 && cl.is_there();
    if (kind == tvm::runtime::kExist) *value = static_cast<int>(there);
    if (!there) return;
    cl_device_id one = cl.device();
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock:
        *value = Driver::Number<size_t>(one, CL_DEVICE_MAX_WORK_GROUP_SIZE);
        break;
      case tvm::runtime::kWarpSize:
        *value = int64_t{1};
        break;
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        *value = Driver::Number<cl_ulong>(one, CL_DEVICE_LOCAL_MEM_SIZE);
        break;
      case tvm::runtime::kMultiProcessorCount:
        *value = Driver::Number<cl_uint>(one, CL_DEVICE_MAX_COMPUTE_UNITS);
        break;
      case tvm::runtime::kMaxClockRate:  // MHz there, kHz here
        *value = 1000 * Driver::Number<cl_uint>(one, CL_DEVICE_MAX_CLOCK_FREQUENCY);
        break;
      case tvm::runtime::kDeviceName:
        *value = ffi::String(Driver::Text(one, CL_DEVICE_NAME));
        break;
      case tvm::runtime::kDriverVersion:
        *value = ffi::String(Driver::Text(one, CL_DRIVER_VERSION));
        break;
      case tvm::runtime::kComputeVersion:
        *value = ffi::String(Driver::Text(one, CL_DEVICE_VERSION));
        break;
      case tvm::runtime::kTotalGlobalMemory:
        *value = Driver::Number<cl_ulong>(one, CL_DEVICE_GLOBAL_MEM_SIZE);
        break;
      default:
        break;
    }
  }
  void* AllocDataSpace(Device, size_t bytes, size_t, DLDataType) final {
    Driver& cl = Driver::Get();
    if (cl.mode == kRecord) return new Buffer{nullptr, bytes, cl.buffers++};
    cl_int code = 0;
    cl_mem memory = clCreateBuffer_(cl, bytes, &code);
    Check(code, "clCreateBuffer");
    return new Buffer{memory, bytes, cl.buffers++};
  }
  void FreeDataSpace(Device, void* data) final {
    auto buffer = static_cast<Buffer*>(data);
    if (buffer->memory != nullptr) {
      Driver::Get().Wait();
      clReleaseMemObject(buffer->memory);
    }
    delete buffer;
  }
  void StreamSync(Device, TVMStreamHandle) final { Driver::Get().Finish(); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size,
                      Device from_device, Device to_device, DLDataType, TVMStreamHandle) final {
    if (size == 0) return;
    cl_command_queue queue = Driver::Get().queue();
    bool reads = from_device.device_type == kDLOpenCL, writes = to_device.device_type == kDLOpenCL;
    if (reads && writes) {
      Check(clEnqueueCopyBuffer(queue, Memory(from), Memory(to), from_offset, to_offset, size, 0,
                                nullptr, nullptr),
            "clEnqueueCopyBuffer");
    } else if (reads) {
      Check(clEnqueueReadBuffer(queue, Memory(from), 1, from_offset, size,
                                static_cast<char*>(to) + to_offset, 0, nullptr, nullptr),
            "clEnqueueReadBuffer");
    } else {
      Check(clEnqueueWriteBuffer(queue, Memory(to), 1, to_offset, size,
                                 static_cast<const char*>(from) + from_offset, 0, nullptr, nullptr),
            "clEnqueueWriteBuffer");
    }
  }

 private:
  static cl_mem clCreateBuffer_(Driver& cl, size_t bytes, cl_int* code) {
    return clCreateBuffer(cl.context(), CL_MEM_READ_WRITE, std::max<size_t>(bytes, 1), nullptr,
                          code);
  }
  static cl_mem Memory(const void* data) { return static_cast<const Buffer*>(data)->memory; }
};

// A kernel as TVM's code generator describes it: the dtypes of its arguments, and which place of
// (groups x, y, z, items x, y, z) each launch parameter after them has.
struct KernelInfo {
  std::vector<std::string> dtypes;
  std::vector<int> places;
};

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) out.push_back(word);
  return out;
}

class OpenCLModule final : public ffi::ModuleObj {
 public:
  // `about`: a line a kernel: name|dtypes, by comma|launch parameters, by comma
  OpenCLModule(std::string source, std::string about) : source_(source), about_(about) {
    for (const std::string& line : Split(about, '\n')) {
      std::vector<std::string> parts = Split(line + "||", '|');
      KernelInfo info{Split(parts[1], ','), {}};
      for (const std::string& tag : Split(parts[2], ',')) {
        size_t dot = tag.find("Idx.");
        bool known = dot != std::string::npos && dot + 5 == tag.size();
        if (!known) TVM_FFI_THROW(ValueError) << "OpenCL: launch parameter " << tag;
        info.places.push_back((tag[0] == 't' ? 3 : 0) + tag.back() - 'x');
      }
      infos_[parts[0]] = info;
    }
  }
  ~OpenCLModule() {
    for (auto& kernel : kernels_) clReleaseKernel(kernel.second);
    if (program_ != nullptr) clReleaseProgram(program_);
  }

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::String InspectSource(const ffi::String&) const final { return source_; }
  ffi::Bytes SaveToBytes() const final {
    return ffi::Bytes(std::to_string(about_.size()) + "\n" + about_ + source_);
  }
  static ffi::Module Load(const ffi::Bytes& bytes) {
    std::string all(bytes.data(), bytes.size());
    size_t start = all.find('\n') + 1, size = std::stoul(all);
    return ffi::Module(
        ffi::make_object<OpenCLModule>(all.substr(start + size), all.substr(start, size)));
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto found = infos_.find(name);
    if (found == infos_.end()) return std::nullopt;
    auto self = ffi::details::ObjectUnsafe::ObjectPtrFromUnowned<ffi::Object>(
        static_cast<ffi::Object*>(this));
    return ffi::Function::FromPacked(
        [this, self, kernel = std::string(name), info = found->second](
            const ffi::AnyView* arguments, int32_t, ffi::Any*) {
          Launch(kernel, info, reinterpret_cast<const TVMFFIAny*>(arguments));
        });
  }

 private:
  void Launch(const std::string& name, const KernelInfo& info, const TVMFFIAny* arguments) {
    Driver& cl = Driver::Get();
    size_t sizes[6] = {1, 1, 1, 1, 1, 1}, global[3];
    const TVMFFIAny* extents = arguments + info.dtypes.size();
    for (size_t i = 0; i < info.places.size(); ++i) {
      sizes[info.places[i]] = std::max<int64_t>(1, extents[i].v_int64);
    }
    size_t* local = sizes + 3;
    for (int i = 0; i < 3; ++i) global[i] = sizes[i] * local[i];
    if (cl.mode == kRecord) return Record(name, info, arguments, global, local);
    std::lock_guard<std::mutex> lock(mutex_);  // arguments belong to the kernel, not the launch
    cl_kernel kernel = Kernel(name);
    for (size_t i = 0; i < info.dtypes.size(); ++i) SetArgument(kernel, i, info, arguments[i]);
    if (cl.mode == kCompile && !Compiles(kernel, name, global, local)) return;
    cl_event event = nullptr;
    Check(clEnqueueNDRangeKernel(cl.queue(), kernel, 3, nullptr, global, local, 0, nullptr,
                                 cl.timing ? &event : nullptr),
          "clEnqueueNDRangeKernel");
    if (event != nullptr) cl.events.push_back(event);
  }

  // Whether the device must launch the kernel to compile it, as PoCL does, for the size of its work
  // groups: then `global` becomes one group. Raises where the work group is too large.
  static bool Compiles(cl_kernel kernel, const std::string& name, size_t* global,
                       const size_t* local) {
    cl_device_id device = Driver::Get().device();
    size_t most = 0, items = local[0] * local[1] * local[2];
    clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most,
                             nullptr);
    if (most != 0 && items > most) {
      TVM_FFI_THROW(RuntimeError) << "OpenCL: " << name << ": " << Named(-54) << " (" << items
                                  << ", at most " << most << ")";
    }
    std::copy(local, local + 3, global);
    return Driver::Number<cl_ulong>(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU;
  }

  // A line: name, then global and local sizes, then every argument: number and bytes of a buffer, or
  // a value.
  static void Record(const std::string& name, const KernelInfo& info, const TVMFFIAny* arguments,
                     const size_t* global, const size_t* local) {
    std::ostringstream& out = Driver::Get().launches;
    out << name;
    for (int i = 0; i < 3; ++i) out << ' ' << global[i];
    for (int i = 0; i < 3; ++i) out << ' ' << local[i];
    for (size_t i = 0; i < info.dtypes.size(); ++i) {
      const std::string& dtype = info.dtypes[i];
      out << ' ' << dtype << ':';
      if (dtype == "handle") {
        auto buffer = static_cast<Buffer*>(arguments[i].v_ptr);
        out << buffer->number << ':' << buffer->bytes;
      } else if (dtype.rfind("float", 0) == 0) {
        out << arguments[i].v_float64;
      } else {
        out << arguments[i].v_int64;
      }
    }
    out << '\n';
  }

  static void SetArgument(cl_kernel kernel, size_t place, const KernelInfo& info,
                          const TVMFFIAny& value) {
    const std::string& dtype = info.dtypes[place];
    cl_mem memory = nullptr;
    int32_t small = static_cast<int32_t>(value.v_int64);
    float single = static_cast<float>(value.v_float64);
    size_t size = 4;
    const void* data = &small;
    if (dtype == "handle") {
      memory = static_cast<Buffer*>(value.v_ptr)->memory;
      size = sizeof memory, data = &memory;
    } else if (dtype == "float32") {
      data = &single;
    } else if (dtype == "int64" || dtype == "uint64" || dtype == "float64") {
      size = 8, data = &value.v_int64;  // a union with v_float64
    } else if (dtype != "int32" && dtype != "uint32") {
      TVM_FFI_THROW(TypeError) << "OpenCL: a kernel's argument of type " << dtype;
    }
    Check(clSetKernelArg(kernel, place, size, data), "clSetKernelArg");
  }

  cl_kernel Kernel(const std::string& name) {
    Driver& cl = Driver::Get();
    cl_int code = 0;
    if (program_ == nullptr) {
      const char* text = source_.c_str();
      cl_program made = clCreateProgramWithSource(cl.context(), 1, &text, nullptr, &code);
      Check(code, "clCreateProgramWithSource");
      cl_device_id device = cl.device();
      code = clBuildProgram(made, 1, &device, "", nullptr, nullptr);
      if (code != 0) {
        std::vector<char> log(1 << 16, 0);
        clGetProgramBuildInfo(made, device, CL_PROGRAM_BUILD_LOG, log.size() - 1, log.data(),
                              nullptr);
        clReleaseProgram(made);
        std::string said = log.data();
        TVM_FFI_THROW(RuntimeError) << "OpenCL: the driver refuses the kernel: " << Named(code)
                                    << ": " << said.substr(0, 300);
      }
      program_ = made;
    }
    cl_kernel& kernel = kernels_[name];
    if (kernel == nullptr) {
      kernel = clCreateKernel(program_, name.c_str(), &code);
      Check(code, "clCreateKernel");
    }
    return kernel;
  }

  std::string source_, about_;
  std::map<std::string, KernelInfo> infos_;
  std::map<std::string, cl_kernel> kernels_;
  cl_program program_ = nullptr;
  std::mutex mutex_;
};

// The seconds that the device itself says its kernels took: no launches, no gaps between them.
class OpenCLTimer : public TimerNode {
 public:
  void Start() final {
    Driver::Get().Finish();
    Drop();
    Driver::Get().timing = true;
  }
  void Stop() final { Driver::Get().timing = false; }
  int64_t SyncAndGetElapsedNanos() final {
    Driver::Get().Finish();
    int64_t sum = 0;
    for (cl_event event : Driver::Get().events) {
      cl_ulong start = 0, end = 0;
      Check(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, 8, &start, nullptr), "time");
      Check(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, 8, &end, nullptr), "time");
      sum += static_cast<int64_t>(end - start);
    }
    Drop();
    return sum;
  }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("runtime.opencl.OpenCLTimerNode", OpenCLTimer, TimerNode);

 private:
  static void Drop() {
    for (cl_event event : Driver::Get().events) clReleaseEvent(event);
    Driver::Get().events.clear();
  }
};

// Sets the mode of launches; gives the lines that were recorded since the last call.
ffi::String SetMode(int mode) {
  Driver& cl = Driver::Get();
  cl.mode = static_cast<Mode>(mode);
  cl.buffers = 0;
  std::string lines = cl.launches.str();
  cl.launches.str("");
  return lines;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("device_api.opencl",
                  [](ffi::PackedArgs, ffi::Any* value) {
                    static OpenCLDevice* only = new OpenCLDevice();
                    *value = static_cast<void*>(only);
                  })
      .def("runtime.timer.opencl",
           [](Device) { return Timer(ffi::make_object<OpenCLTimer>()); })
      .def("ffi.Module.load_from_bytes.opencl",
           [](ffi::Bytes bytes) { return OpenCLModule::Load(bytes); })
      .def("pruner.opencl.module",
           [](std::string source, std::string about) {
             return ffi::Module(ffi::make_object<OpenCLModule>(source, about));
           })
      .def("pruner.opencl.devices", Devices)
      .def("pruner.opencl.why", [] { return ffi::String(Driver::Get().why); })
      .def("pruner.opencl.set_mode", SetMode);
}
