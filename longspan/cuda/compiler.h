// NVRTC, the CUDA C++ compiler that comes with torch as a library. It needs neither a toolkit nor a
// GPU. No torch.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace longspan::cuda {

/// Why kernels cannot be compiled, as a clause.
class CompileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Compiled {
  std::string cubin;  // machine code
  std::string log;    // registers, and memory that holds what they cannot (ptxas -v)
};

class Compiler {
 public:
  /// libnvrtc, of the process or beside torch, loaded on the first call. Throws CompileError where
  /// there is none.
  static const Compiler& get();

  /// "13.2".
  const std::string& version() const { return version_; }
  /// How it compiles, as one text, for whoever keeps what it made.
  std::string options(int architecture) const;
  /// The newest architecture that it knows and whose code runs on a GPU of this compute capability
  /// (90 for 9.0). Throws CompileError where there is none.
  int architecture_for(int capability) const;
  /// Machine code for one architecture. `name` is for messages. Throws CompileError with the
  /// compiler's first error.
  Compiled compile(const std::string& source, const std::string& name, int architecture) const;

 private:
  struct Library;
  explicit Compiler(const Library* library);

  const Library* library_;
  std::string version_;
  std::vector<int> architectures_;
};

}  // namespace longspan::cuda
