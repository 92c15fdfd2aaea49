#include "longspan/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

#include "longspan/cuda/shared_library.h"

namespace longspan::cuda {
namespace {

// Declarations of cuda.h.
using DriverResult = int;
constexpr DriverResult kDriverSuccess = 0;
enum Attribute { kNumMultiprocessors = 16, kCapabilityMajor = 75, kCapabilityMinor = 76 };

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
    throw std::runtime_error(fmt::format("the NVIDIA driver could not {}: {}", what, text));
  }

 private:
  static Driver load() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error("there is no NVIDIA driver, libcuda.so.1");
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
                          find(library, "cuLaunchKernel", driver.launch);
    if (!complete) throw std::runtime_error("libcuda.so.1 lacks functions of CUDA 7 or newer");
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

int compute_capability(int index) {
  const Driver& driver = Driver::get();
  int device = 0, major = 0, minor = 0;
  driver.check(driver.get_device(&device, index), "find the GPU");
  driver.check(driver.get_attribute(&major, kCapabilityMajor, device), "look at the GPU");
  driver.check(driver.get_attribute(&minor, kCapabilityMinor, device), "look at the GPU");
  return 10 * major + minor;
}

int capability_or_0(int index) {
  static const int known = [index] {
    try {
      return compute_capability(index);
    } catch (const std::runtime_error&) {
      return 0;
    }
  }();
  return known;
}

Device::Device(int index) : capability_(compute_capability(index)) {
  const Driver& driver = Driver::get();
  driver.check(driver.get_device(&index_, index), "find the GPU");
  driver.check(driver.get_attribute(&num_multiprocessors_, kNumMultiprocessors, index_),
               "look at the GPU");
  driver.check(driver.retain_context(&context_, index_), "find the GPU's context");
}

CudaModule* Device::load(const std::string& cubin) const {
  const InContext in_context(context_);
  CudaModule* module = nullptr;
  Driver::get().check(Driver::get().load_module(&module, cubin.data()), "load the kernels");
  return module;
}

Function Device::function(CudaModule* module, const std::string& name) const {
  const InContext in_context(context_);
  Function function = nullptr;
  Driver::get().check(Driver::get().get_function(&function, module, name.c_str()),
                      fmt::format("find the kernel {}", name).c_str());
  return function;
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
