// NVRTC, the CUDA C++ compiler that comes with torch as a library. Needs no toolkit and no GPU. No
// torch.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace longspan::cuda {

/// The reason why kernels cannot be compiled, as one clause.
class CompileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Compiled {
  std::string cubin;  // machine code
  std::string log;    // registers and spilled registers (ptxas -v)
};

class Compiler {
 public:
  /// Returns libnvrtc: the copy that the process has loaded, otherwise the copy beside torch. Loads
  /// the library at the first call. Throws CompileError where no usable libnvrtc is found.
  static const Compiler& get();
  /// Returns each libnvrtc in torch's folder of packages; if there is none, get(). For tests.
  /// Throws CompileError where no usable libnvrtc is found.
  static std::vector<Compiler> installed();

  /// Version, as in "13.2".
  const std::string& version() const { return version_; }
  /// Returns the compiler options as one text, for a cache key.
  std::string options(int architecture) const;
  /// Returns the newest architecture that this NVRTC supports and whose code runs on a GPU of this
  /// compute capability (90 for 9.0). Throws CompileError where no architecture does.
  int architecture_for(int capability) const;
  /// Compiles for one architecture. `name` is for messages. Throws CompileError with the compiler's
  /// first error.
  Compiled compile(const std::string& source, const std::string& name, int architecture) const;

 private:
  struct Library;
  explicit Compiler(const Library* library);

  const Library* library_;
  std::string version_;
  std::vector<int> architectures_;
};

}  // namespace longspan::cuda
