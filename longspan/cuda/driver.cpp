#include "longspan/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "longspan/cuda/shared_library.h"

namespace longspan::cuda {
namespace {

// Declarations of cuda.h.
using DriverResult = int;
constexpr DriverResult kDriverSuccess = 0, kDriverOutOfMemory = 2;
/// Refusals of machine code: an invalid image, none for this GPU, PTX that the driver cannot
/// compile (four kinds), an invalid source, a file or a shared object that is missing (three
/// kinds), a missing name, an unsupported operation.
constexpr DriverResult kRefusalsOfCode[] = {200, 209, 218, 221, 222, 223,
                                            300, 301, 302, 303, 500, 801};
enum Attribute {
  kNumMultiprocessors = 16,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kSharedOfMultiprocessor = 81
};
constexpr int kMostSharedOfFunction = 8;  // an attribute of a function

struct Driver {
  DriverResult (*initialize)(unsigned flags);
  DriverResult (*error_text)(DriverResult result, const char** text);
  DriverResult (*get_device)(int* device, int index);
  DriverResult (*get_attribute)(int* value, int attribute, int device);
  DriverResult (*retain_context)(CudaContext** context, int device);
  DriverResult (*current_context)(CudaContext** context);
  DriverResult (*push_context)(CudaContext* context);
  DriverResult (*pop_context)(CudaContext** context);
  DriverResult (*load_module)(CudaModule** module, const void* image);
  DriverResult (*get_function)(Function* function, CudaModule* module, const char* name);
  DriverResult (*set_function_attribute)(Function function, int attribute, int value);
  // Null before CUDA 12.4.
  DriverResult (*count_functions)(unsigned* count, CudaModule* module);
  DriverResult (*list_functions)(Function* functions, unsigned count, CudaModule* module);
  DriverResult (*load_function)(Function function);
  DriverResult (*launch)(Function function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                         unsigned threads_x, unsigned threads_y, unsigned threads_z,
                         unsigned shared_bytes, void* stream, void** arguments, void** extra);

  static const Driver& get() {
    static const Driver driver = load();
    return driver;
  }

  void check(DriverResult result, const char* what) const {
    if (result == kDriverSuccess) return;
    const char* text = nullptr;
    if (error_text(result, &text) != kDriverSuccess || text == nullptr) text = "unknown error";
    const std::string message = fmt::format("the NVIDIA driver could not {}: ", what);
    if (result == kDriverOutOfMemory) throw OutOfGpuMemory(message + text);
    if (std::ranges::count(kRefusalsOfCode, result) > 0) throw CodeRefused(message + text);
    throw std::runtime_error(fmt::format("{}CUDA error: {}", message, text));
  }

 private:
  static Driver load() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw CodeRefused("there is no NVIDIA driver, libcuda.so.1");
    Driver driver;
    const bool complete = find(library, "cuInit", driver.initialize) &&
                          find(library, "cuGetErrorString", driver.error_text) &&
                          find(library, "cuDeviceGet", driver.get_device) &&
                          find(library, "cuDeviceGetAttribute", driver.get_attribute) &&
                          find(library, "cuDevicePrimaryCtxRetain", driver.retain_context) &&
                          find(library, "cuCtxGetCurrent", driver.current_context) &&
                          find(library, "cuCtxPushCurrent_v2", driver.push_context) &&
                          find(library, "cuCtxPopCurrent_v2", driver.pop_context) &&
                          find(library, "cuModuleLoadData", driver.load_module) &&
                          find(library, "cuModuleGetFunction", driver.get_function) &&
                          find(library, "cuFuncSetAttribute", driver.set_function_attribute) &&
                          find(library, "cuLaunchKernel", driver.launch);
    if (!complete) throw CodeRefused("libcuda.so.1 lacks functions of CUDA 9 or newer");
    const bool lists = find(library, "cuModuleGetFunctionCount", driver.count_functions) &&
                       find(library, "cuModuleEnumerateFunctions", driver.list_functions) &&
                       find(library, "cuFuncLoad", driver.load_function);
    if (!lists) driver.count_functions = nullptr;
    driver.check(driver.initialize(0), "begin");
    return driver;
  }
};

/// Makes the context the calling thread's current one for its lifetime. Threads that have used a
/// GPU through torch have it already.
class InContext {
 public:
  explicit InContext(CudaContext* context) : driver_(Driver::get()) {
    CudaContext* current = nullptr;
    driver_.check(driver_.current_context(&current), "say which context is current");
    if (current == context) return;
    driver_.check(driver_.push_context(context), "change the context");
    pushed_ = true;
  }
  ~InContext() {
    CudaContext* popped = nullptr;
    if (pushed_) driver_.pop_context(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace

namespace {

int attribute_of(int index, Attribute attribute) {
  const Driver& driver = Driver::get();
  int device = 0, value = 0;
  driver.check(driver.get_device(&device, index), "find the GPU");
  driver.check(driver.get_attribute(&value, attribute, device), "look at the GPU");
  return value;
}

/// Returns compute(), or 0 where the driver has no answer.
template <typename Compute>
int or_0(const Compute& compute) {
  try {
    return compute();
  } catch (const std::runtime_error&) {
    return 0;
  }
}

}  // namespace

int compute_capability(int index) {
  return 10 * attribute_of(index, kCapabilityMajor) + attribute_of(index, kCapabilityMinor);
}

int capability_or_0(int index) {
  static const int known = or_0([&] { return compute_capability(index); });
  return known;
}

int multiprocessors_or_0(int index) {
  static const int known = or_0([&] { return attribute_of(index, kNumMultiprocessors); });
  return known;
}

Device::Device(int index)
    : capability_(compute_capability(index)),
      num_multiprocessors_(attribute_of(index, kNumMultiprocessors)),
      shared_bytes_(attribute_of(index, kSharedOfMultiprocessor)) {
  const Driver& driver = Driver::get();
  driver.check(driver.get_device(&index_, index), "find the GPU");
  driver.check(driver.retain_context(&context_, index_), "find the GPU's context");
}

CudaModule* Device::load(const std::string& cubin) const {
  const InContext in_context(context_);
  CudaModule* module = nullptr;
  const Driver& driver = Driver::get();
  driver.check(driver.load_module(&module, cubin.data()), "load the kernels");
  if (driver.count_functions == nullptr) return module;
  unsigned count = 0;
  driver.check(driver.count_functions(&count, module), "count the kernels");
  std::vector<Function> functions(count);
  driver.check(driver.list_functions(functions.data(), count, module), "list the kernels");
  for (const Function function : functions) {
    driver.check(driver.load_function(function), "load a kernel");
  }
  return module;
}

Function Device::function(CudaModule* module, const std::string& name) const {
  const InContext in_context(context_);
  Function function = nullptr;
  Driver::get().check(Driver::get().get_function(&function, module, name.c_str()),
                      fmt::format("find the kernel {}", name).c_str());
  return function;
}

void Device::allow_shared_bytes(Function function, unsigned bytes) const {
  const InContext in_context(context_);
  Driver::get().check(Driver::get().set_function_attribute(function, kMostSharedOfFunction,
                                                           static_cast<int>(bytes)),
                      "give a kernel its shared memory");
}

void Device::launch(Function function, const Launch& launch, void* stream,
                    const void* argument) const {
  const InContext in_context(context_);
  void* arguments[] = {const_cast<void*>(argument)};
  Driver::get().check(
      Driver::get().launch(function, launch.blocks_x, launch.blocks_y, 1, launch.threads_x,
                           launch.threads_y, 1, launch.shared_bytes, stream, arguments, nullptr),
      "start a kernel");
}

}  // namespace longspan::cuda
