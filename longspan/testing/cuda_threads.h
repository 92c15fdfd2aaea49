// Runs CUDA C++ as ordinary C++, so that a machine without a GPU can test the kernels of cuda/rows.
// The threads of a block are fibers that switch when they wait for each other; blocks run one after
// the other. For one test file, which includes the kernels after this header.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#define __device__
#define __global__
#define __forceinline__
#define __launch_bounds__(...)
// Static, since only one block runs at a time.
#define __shared__ static
#define LONGSPAN_SHARED_FLOATS(name) float* const name = longspan::testing::block().shared
#define LONGSPAN_KERNEL(name, Argument, threads)                                      \
  void name(Argument a);                                                              \
  const bool is_known_##name = ::longspan::testing::add_kernel(                       \
      #name, [](const void* a) { name(*static_cast<const Argument*>(a)); }, threads); \
  void name(Argument a)
#define LONGSPAN_DENSE_KERNEL(name, Argument, threads, blocks) \
  LONGSPAN_KERNEL(name, Argument, threads)

// NOLINTBEGIN: these are CUDA's names.
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Indices {
  unsigned x = 0, y = 0;
};
inline Indices threadIdx, blockIdx, blockDim, gridDim;

inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}
using std::max;
using std::min;
// NOLINTEND

namespace longspan::testing {

/// The running block.
struct Block {
  static constexpr int kMostThreads = 1024, kStackBytes = 1 << 15;
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    Indices index;
    bool ended;
  };
  std::vector<Fiber> fibers = std::vector<Fiber>(kMostThreads);
  ucontext_t scheduler;
  std::function<void()> kernel;
  int current = 0, num_waiting = 0, num_running = 0, turn = 0;
  double exchanged[kMostThreads];
  alignas(16) float shared[48 * 1024 / sizeof(float)];

  void let_go_if_all_wait() {
    if (num_waiting < num_running) return;
    num_waiting = 0;
    ++turn;
  }
  void wait_for_all() {
    const int mine = turn;
    ++num_waiting;
    let_go_if_all_wait();
    while (turn == mine) swapcontext(&fibers[current].context, &scheduler);
  }
};

inline Block& block() {
  static Block only;
  return only;
}

inline void run_fiber() {
  Block& own = block();
  own.kernel();
  Block::Fiber& fiber = own.fibers[own.current];
  fiber.ended = true;
  --own.num_running;
  if (own.num_running > 0) own.let_go_if_all_wait();
  swapcontext(&fiber.context, &own.scheduler);
}

struct KnownKernel {
  std::function<void(const void*)> run;
  unsigned most_threads;
};
inline std::map<std::string, KnownKernel>& known_kernels() {
  static std::map<std::string, KnownKernel> all;
  return all;
}
inline bool add_kernel(const std::string& name, std::function<void(const void*)> run,
                       unsigned most_threads) {
  return known_kernels().emplace(name, KnownKernel{std::move(run), most_threads}).second;
}

/// Runs the kernel of this name for each thread of each block.
inline void run_on_threads(const std::string& name, const Indices& blocks, const Indices& threads,
                           size_t shared_bytes, const void* argument) {
  const auto kernel = known_kernels().find(name);
  if (kernel == known_kernels().end()) throw std::runtime_error("there is no kernel " + name);
  Block& own = block();
  if (threads.x * threads.y > kernel->second.most_threads || shared_bytes > sizeof(own.shared)) {
    throw std::runtime_error("no GPU starts " + name + " with so many threads or bytes");
  }
  own.kernel = [&] { kernel->second.run(argument); };
  gridDim = blocks;
  blockDim = threads;
  const int num_threads = static_cast<int>(threads.x * threads.y);
  for (unsigned i = 0; i < blocks.x * blocks.y; ++i) {
    blockIdx = {i % blocks.x, i / blocks.x};
    own.num_running = num_threads;
    own.num_waiting = 0;
    for (int t = 0; t < num_threads; ++t) {
      Block::Fiber& fiber = own.fibers[t];
      fiber.stack.resize(Block::kStackBytes);
      fiber.index = {static_cast<unsigned>(t) % threads.x, static_cast<unsigned>(t) / threads.x};
      fiber.ended = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, run_fiber, 0);
    }
    while (own.num_running > 0) {
      for (int t = 0; t < num_threads; ++t) {
        if (own.fibers[t].ended) continue;
        own.current = t;
        threadIdx = own.fibers[t].index;
        swapcontext(&own.scheduler, &own.fibers[t].context);
      }
    }
  }
}

}  // namespace longspan::testing

// NOLINTBEGIN
inline void __syncthreads() { longspan::testing::block().wait_for_all(); }
/// All threads of a block must call this function; on a GPU, only the threads of a warp.
template <typename T>
T __shfl_xor_sync(unsigned, T x, int step) {
  auto& own = longspan::testing::block();
  const int thread = own.current;
  own.exchanged[thread] = static_cast<double>(x);
  own.wait_for_all();
  const T other = static_cast<T>(own.exchanged[thread ^ step]);
  own.wait_for_all();
  return other;
}
/// Adds each lane's part of the product of `a` and `b` to `sum`, in the layout of the instruction
/// mma.m16n8k16. A word holds two bf16. A lane has four words of `a`, and two words of `b` for each
/// group of 8 columns; `columns` counts the groups. All threads of a block must call this function.
inline void multiply_of_warp(float* sum, const unsigned* a, const unsigned* b, int columns) {
  constexpr int kMostWords = 8;
  static unsigned words[longspan::testing::Block::kMostThreads][2][kMostWords];
  auto& own = longspan::testing::block();
  const int lane = own.current % 32, first = own.current - lane;
  std::copy_n(a, 4, words[own.current][0]);
  std::copy_n(b, 2 * columns, words[own.current][1]);
  own.wait_for_all();
  const auto number = [](unsigned word, int half) {
    return __uint_as_float(half == 0 ? word << 16 : word & 0xffff0000u);
  };
  for (int j = 0; j < columns; ++j) {
    for (int n = 0; n < 4; ++n) {
      const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
      for (int k = 0; k < 16; ++k) {
        const int pair = k / 2, in_row = pair % 4;
        const unsigned of_a = words[first + row % 8 * 4 + in_row][0][row / 8 + pair / 4 * 2];
        const unsigned of_b = words[first + column % 8 * 4 + in_row][1][2 * j + pair / 4];
        sum[j * 4 + n] += number(of_a, k % 2) * number(of_b, k % 2);
      }
    }
  }
  own.wait_for_all();
}
// NOLINTEND
