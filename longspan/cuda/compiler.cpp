#include "longspan/cuda/compiler.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>

#include "longspan/cuda/shared_library.h"

namespace longspan::cuda {
namespace {

// Declarations of nvrtc.h, of which torch's packages have only a part.
using Program = struct NvrtcProgram*;
using Result = int;
constexpr Result kSuccess = 0, kNoMemory = 1;

/// Versions by the names of their libraries, newest first.
constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
/// Folders in torch's packages, relative to the folder of packages.
constexpr const char* kFolders[] = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};

/// Returns the libraries in torch's folder of packages, in the order of the two lists.
std::vector<void*> libraries_of_packages() {
  std::vector<void*> libraries;
  const std::string torch = folder_of_torch();
  if (torch.empty()) return libraries;
  const auto packages = std::filesystem::path(torch).parent_path().parent_path();
  for (const char* folder : kFolders) {
    for (const char* name : kNames) {
      void* const loaded = dlopen((packages / folder / name).c_str(), RTLD_NOW);
      if (loaded != nullptr) libraries.push_back(loaded);
    }
  }
  return libraries;
}

/// Returns the library of the process, else torch's, else the system's.
void* open_library() {
  for (const char* name : kNames) {
    if (void* loaded = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  }
  if (const std::vector<void*> found = libraries_of_packages(); !found.empty()) return found[0];
  for (const char* name : kNames) {
    if (void* loaded = dlopen(name, RTLD_NOW)) return loaded;
  }
  return nullptr;
}

/// NVRTC opens libnvrtc-builtins by name when it compiles, and torch 2.11's NVRTC does not search
/// its own folder. A loaded library is found.
void load_builtins(const void* function_of_nvrtc, int major, int minor) {
  Dl_info library{};
  if (dladdr(function_of_nvrtc, &library) == 0) return;
  const auto folder = std::filesystem::path(library.dli_fname).parent_path();
  dlopen((folder / fmt::format("libnvrtc-builtins.so.{}.{}", major, minor)).c_str(), RTLD_NOW);
}

/// 90 -> "9.0".
std::string capability_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

}  // namespace

struct Compiler::Library {
  Result (*version)(int* major, int* minor);
  Result (*create)(Program* program, const char* source, const char* name, int num_headers,
                   const char* const* headers, const char* const* include_names);
  Result (*destroy)(Program* program);
  Result (*compile)(Program program, int num_options, const char* const* options);
  Result (*log_size)(Program program, size_t* size);
  Result (*log)(Program program, char* log);
  Result (*cubin_size)(Program program, size_t* size);
  Result (*cubin)(Program program, char* cubin);
  Result (*num_architectures)(int* count);
  Result (*architectures)(int* list);
  const char* (*error_text)(Result result);

  /// Null: there is no library. The result lives as long as the process.
  static const Library* load(void* handle) {
    if (handle == nullptr) {
      throw CompileError(
          "there is no libnvrtc.so.13 or libnvrtc.so.12 (pip install "
          "nvidia-cuda-nvrtc)");
    }
    Library& library = *new Library;
    const bool complete = find(handle, "nvrtcVersion", library.version) &&
                          find(handle, "nvrtcCreateProgram", library.create) &&
                          find(handle, "nvrtcDestroyProgram", library.destroy) &&
                          find(handle, "nvrtcCompileProgram", library.compile) &&
                          find(handle, "nvrtcGetProgramLogSize", library.log_size) &&
                          find(handle, "nvrtcGetProgramLog", library.log) &&
                          find(handle, "nvrtcGetCUBINSize", library.cubin_size) &&
                          find(handle, "nvrtcGetCUBIN", library.cubin) &&
                          find(handle, "nvrtcGetNumSupportedArchs", library.num_architectures) &&
                          find(handle, "nvrtcGetSupportedArchs", library.architectures) &&
                          find(handle, "nvrtcGetErrorString", library.error_text);
    if (!complete) throw CompileError("libnvrtc lacks functions of NVRTC 11.2 or newer");
    return &library;
  }

  void check(Result result) const {
    if (result == kNoMemory) throw std::bad_alloc();
    if (result != kSuccess) throw CompileError(fmt::format("NVRTC says: {}", error_text(result)));
  }
};

Compiler::Compiler(const Library* library) : library_(library) {
  int major = 0, minor = 0, count = 0;
  library_->check(library_->version(&major, &minor));
  load_builtins(reinterpret_cast<const void*>(library_->version), major, minor);
  version_ = fmt::format("{}.{}", major, minor);
  library_->check(library_->num_architectures(&count));
  architectures_.resize(count);
  library_->check(library_->architectures(architectures_.data()));
}

const Compiler& Compiler::get() {
  static const Compiler compiler(Library::load(open_library()));
  return compiler;
}

std::vector<Compiler> Compiler::installed() {
  std::vector<Compiler> compilers;
  for (void* const library : libraries_of_packages()) {
    compilers.push_back(Compiler(Library::load(library)));
  }
  if (compilers.empty()) compilers.push_back(get());
  return compilers;
}

std::string Compiler::options(int architecture) const {
  return fmt::format("--gpu-architecture=sm_{} --std=c++17 --ptxas-options=-v", architecture);
}

int Compiler::architecture_for(int capability) const {
  // Code of an architecture runs on later ones with the same major number.
  std::optional<int> best;
  for (const int architecture : architectures_) {
    if (architecture / 10 != capability / 10 || architecture > capability) continue;
    best = std::max(best.value_or(architecture), architecture);
  }
  if (!best) {
    throw CompileError(fmt::format("NVRTC {} knows no GPU of compute capability {}", version_,
                                   capability_text(capability)));
  }
  return *best;
}

Compiled Compiler::compile(const std::string& source, const std::string& name,
                           int architecture) const {
  Program made = nullptr;
  library_->check(
      library_->create(&made, source.c_str(), name.c_str(), /*num_headers=*/0, nullptr, nullptr));
  auto destroy = [this](Program program) { library_->destroy(&program); };
  const std::unique_ptr<NvrtcProgram, decltype(destroy)> program(made, destroy);

  std::vector<std::string> words;
  for (std::string rest = options(architecture) + " "; !rest.empty();) {
    const size_t end = rest.find(' ');
    words.push_back(rest.substr(0, end));
    rest.erase(0, end + 1);
  }
  std::vector<const char*> options;
  for (const std::string& word : words) options.push_back(word.c_str());
  const Result result =
      library_->compile(program.get(), static_cast<int>(options.size()), options.data());

  Compiled compiled;
  size_t size = 0;
  library_->check(library_->log_size(program.get(), &size));
  compiled.log.resize(size);
  library_->check(library_->log(program.get(), compiled.log.data()));
  while (!compiled.log.empty() && compiled.log.back() == '\0') compiled.log.pop_back();
  if (result == kNoMemory) library_->check(result);
  if (result != kSuccess) {
    const size_t error = std::min(compiled.log.find("error"), compiled.log.size());
    throw CompileError(
        fmt::format("{} does not compile with NVRTC {} for sm_{}: {}", name, version_, architecture,
                    error == compiled.log.size()
                        ? library_->error_text(result)
                        : compiled.log.substr(error, compiled.log.find('\n', error) - error)));
  }
  library_->check(library_->cubin_size(program.get(), &size));
  compiled.cubin.resize(size);
  library_->check(library_->cubin(program.get(), compiled.cubin.data()));
  return compiled;
}

}  // namespace longspan::cuda
