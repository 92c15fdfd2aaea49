// Runs CUDA C++ as ordinary C++, so that a machine without a GPU can test the kernels of cuda/rows.
// The threads of a block are fibers that switch when they wait for each other; blocks run one after
// the other. For one test file, which includes the kernels after this header.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "longspan/testing/emulated_kernels.h"

#define __device__
#define __global__
#define __forceinline__
#define __launch_bounds__(...)
// Static, since only one block runs at a time. NaN until a thread writes it.
#define LONGSPAN_SHARED(Type, name, ...) \
  static Type name __VA_ARGS__;          \
  ::longspan::testing::block().fill_once(&name, sizeof(name))
#define LONGSPAN_SHARED_FLOATS(name) \
  float* const name = reinterpret_cast<float*>(longspan::testing::block().shared)
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

/// Rounded to nearest; compilers do not fuse them.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }

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

/// Threads that wait for each other: a block's, or a warp's.
struct Waiting {
  int num_waiting = 0, num_running = 0, turn = 0;
  void let_go_if_all_wait() {
    if (num_waiting < num_running) return;
    num_waiting = 0;
    ++turn;
  }
};

/// An asynchronous copy of 16 bytes, or of zeros.
struct VectorCopy {
  char* to;
  const char* from;  // null: zeros
};

/// The running block.
struct Block {
  static constexpr int kMostThreads = 1024, kLanes = 32, kStackBytes = 1 << 15;
  /// Bytes that the threads share: of GPUs of compute capability 8.6, the fewest.
  static constexpr int kSharedBytes = 99 * 1024;
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    Indices index;
    bool ended;
    const Waiting* waits_for;  // null: for none
    int turn;                  // that ends the wait
    std::vector<VectorCopy> started;
    std::deque<std::vector<VectorCopy>> groups;  // of copies that have not arrived
    unsigned num_exchanges, num_copies, num_reads;
  };
  std::vector<Fiber> fibers = std::vector<Fiber>(kMostThreads);
  ucontext_t scheduler;
  std::function<void()> kernel;
  int current = 0;
  Waiting all, warps[kMostThreads / kLanes];
  std::string fault;  // of a thread, which cannot throw
  /// Banks of shared memory that the lanes of a warp use at the same time: for each access (by its
  /// number), and for each part of the warp that accesses 128 bytes together.
  using UsedBanks = std::vector<std::array<unsigned, 4>>;
  UsedBanks copy_banks[kMostThreads / kLanes], read_banks[kMostThreads / kLanes];
  std::vector<CopiedVector>* copied = nullptr;  // by all blocks, where it is not null
  std::set<KernelLine>* waits = nullptr;        // of all blocks, where it is not null
  std::optional<KernelLine> left_out;           // a wait that threads do not make
  std::vector<const void*> filled;              // fixed shared memory of this block
  alignas(128) char shared[kSharedBytes];

  Fiber& fiber() { return fibers[current]; }
  void fill_once(void* data, size_t size) {
    if (std::ranges::count(filled, data) > 0) return;
    filled.push_back(data);
    std::memset(data, 0xff, size);
  }
  /// Notes a wait. Returns whether threads leave it out.
  bool leaves_out(const KernelLine& wait) {
    if (waits != nullptr) waits->insert(wait);
    return left_out == wait;
  }
  Waiting& warp() { return warps[current / kLanes]; }
  void wait_for(Waiting& others) {
    fiber().waits_for = &others;
    fiber().turn = others.turn;
    ++others.num_waiting;
    others.let_go_if_all_wait();
    while (others.turn == fiber().turn) swapcontext(&fiber().context, &scheduler);
    fiber().waits_for = nullptr;
  }
  bool can_run(const Fiber& of) const {
    return !of.ended && (of.waits_for == nullptr || of.waits_for->turn != of.turn);
  }
  /// Finds lanes that use one bank at the same time.
  void use_banks(UsedBanks& used, size_t number, const char* at, unsigned bytes) {
    if (used.size() <= number) used.resize(number + 1);
    unsigned& before = used[number][current % kLanes / (128 / bytes)];
    const unsigned own = ((1u << bytes / 4) - 1) << (at - shared) / 4 % 32;
    if ((before & own) != 0) fault = "lanes use the same bank of shared memory at the same time";
    before |= own;
  }
};

inline Block& block() {
  static Block only;
  return only;
}

inline void run_fiber() {
  Block& own = block();
  own.kernel();
  own.fiber().ended = true;
  for (Waiting* const others : {&own.all, &own.warp()}) {
    if (--others->num_running > 0) others->let_go_if_all_wait();
  }
  swapcontext(&own.fiber().context, &own.scheduler);
}

/// Lets each warp run until it ends or waits for other warps: in every other block the last warp
/// and lane first, else the first. Warps are thus as far apart as a GPU lets them be, which shows
/// reads and writes that no barrier separates.
inline void run_warps(int num_threads) {
  Block& own = block();
  const bool is_reversed = (blockIdx.x + blockIdx.y) % 2 != 0;
  const auto turn = [&](int i, int count) { return is_reversed ? count - 1 - i : i; };
  const int num_warps = (num_threads + Block::kLanes - 1) / Block::kLanes;
  while (own.all.num_running > 0) {
    bool has_moved = false;
    for (int w = 0; w < num_warps; ++w) {
      const int begin = turn(w, num_warps) * Block::kLanes,
                num_lanes = std::min(Block::kLanes, num_threads - begin);
      for (bool moves = true; moves;) {
        moves = false;
        for (int i = 0; i < num_lanes; ++i) {
          const int t = begin + turn(i, num_lanes);
          if (!own.can_run(own.fibers[t])) continue;
          own.current = t;
          threadIdx = own.fibers[t].index;
          swapcontext(&own.scheduler, &own.fibers[t].context);
          moves = has_moved = true;
        }
      }
    }
    if (!has_moved) throw std::runtime_error("threads wait for each other forever");
  }
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

/// Runs the kernel of this name for each thread of each block. The one of two neighbouring blocks
/// with an odd sum of indices comes later, which shows a block that writes the other's numbers.
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
  const unsigned num_blocks = blocks.x * blocks.y;
  for (unsigned turn = 0; turn < 2 * num_blocks; ++turn) {
    const unsigned i = turn % num_blocks;
    blockIdx = {i % blocks.x, i / blocks.x};
    if ((blockIdx.x + blockIdx.y) % 2 != turn / num_blocks) continue;
    own.all = {.num_running = num_threads};
    own.filled.clear();
    own.fault.clear();
    std::memset(own.shared, 0xff, sizeof(own.shared));  // NaN, as bf16 and as fp32
    for (int t = 0; t < num_threads; ++t) {
      if (t % Block::kLanes == 0) {
        const int warp = t / Block::kLanes;
        own.warps[warp] = {.num_running = std::min(num_threads - t, Block::kLanes)};
        own.copy_banks[warp].clear();
        own.read_banks[warp].clear();
      }
      Block::Fiber& fiber = own.fibers[t];
      fiber.stack.resize(Block::kStackBytes);
      fiber.index = {static_cast<unsigned>(t) % threads.x, static_cast<unsigned>(t) / threads.x};
      fiber.ended = false;
      fiber.waits_for = nullptr;
      fiber.started.clear();
      fiber.groups.clear();
      fiber.num_exchanges = fiber.num_copies = fiber.num_reads = 0;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, run_fiber, 0);
    }
    run_warps(num_threads);
    if (!own.fault.empty()) throw std::runtime_error(name + ": " + std::exchange(own.fault, {}));
  }
}

}  // namespace longspan::testing

// NOLINTBEGIN
inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  auto& own = longspan::testing::block();
  if (!own.leaves_out({file, line})) own.wait_for(own.all);
}

/// Returns the values of all lanes of this thread's warp, all of which must call it.
template <typename T>
const T* exchanged(const T& value) {
  auto& own = longspan::testing::block();
  // Two places in turn: the next call's values may come before all lanes have read these.
  static T values[2][longspan::testing::Block::kMostThreads];
  T* const all = values[own.fiber().num_exchanges++ % 2];
  all[own.current] = value;
  own.wait_for(own.warp());
  return all + own.current / 32 * 32;
}
template <typename T>
T __shfl_xor_sync(unsigned, T x, int step) {
  return exchanged(x)[longspan::testing::block().current % 32 ^ step];
}

/// Adds each lane's part of the products of `a` and `b` to sums, in the layout of the instruction
/// mma.m16n8k16. A word holds two bf16. A lane has four words of `a` for each of four groups of 16
/// rows, and two words of `b` for each of two groups of 8 columns. sum_of(i, j): four sums.
template <typename SumOf>
void multiply_of_warp(const unsigned (&a)[4][4], const unsigned (&b)[4], SumOf&& sum_of) {
  struct Own {
    float a[4][4][2], b[2][2][2];
  } own;
  const auto number = [](unsigned word, int half) {
    return __uint_as_float(half == 0 ? word << 16 : word & 0xffff0000u);
  };
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 16; ++i) own.a[i / 4][i % 4][half] = number(a[i / 4][i % 4], half);
    for (int i = 0; i < 4; ++i) own.b[i / 2][i % 2][half] = number(b[i], half);
  }
  const Own* const words = exchanged(own);
  const int lane = longspan::testing::block().current % 32;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      float* const sum = sum_of(i, j);
      for (int n = 0; n < 4; ++n) {
        const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
        for (int k = 0; k < 16; ++k) {
          const int pair = k / 2, in_row = pair % 4;
          sum[n] += words[row % 8 * 4 + in_row].a[i][row / 8 + pair / 4 * 2][k % 2] *
                    words[column % 8 * 4 + in_row].b[j][pair / 4][k % 2];
        }
      }
    }
  }
}

/// cp.async, of 16 bytes. Earlier contents are gone at once, and the bytes arrive as late as a GPU
/// allows: at a wait of this thread. Other threads see them after a barrier behind this wait.
inline void start_copy_of_thread(char* to, const char* from, bool is_there) {
  auto& own = longspan::testing::block();
  const bool is_aligned =
      (to - own.shared) % 16 == 0 && (!is_there || reinterpret_cast<uintptr_t>(from) % 16 == 0);
  if (!is_aligned) own.fault = "a copy of 16 bytes is not aligned";
  own.use_banks(own.copy_banks[own.current / 32], own.fiber().num_copies++, to, 16);
  if (own.copied != nullptr && is_there) own.copied->push_back({blockIdx.x, blockIdx.y, from});
  std::memset(to, 0xff, 16);
  own.fiber().started.push_back({to, is_there ? from : nullptr});
}
inline void end_copies_of_thread() {
  auto& fiber = longspan::testing::block().fiber();
  fiber.groups.push_back(std::exchange(fiber.started, {}));
}
inline void wait_for_copies_of_thread(size_t num_left, const char* file = __builtin_FILE(),
                                      int line = __builtin_LINE()) {
  if (longspan::testing::block().leaves_out({file, line})) return;
  auto& groups = longspan::testing::block().fiber().groups;
  for (; groups.size() > num_left; groups.pop_front()) {
    for (const auto& copy : groups.front()) {
      if (copy.from != nullptr) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
  }
}

/// ldmatrix of four matrices of 8 x 8.
inline void load_matrices_of_warp(const char* row, unsigned* words, bool transposed) {
  auto& own = longspan::testing::block();
  const int lane = own.current % 32;
  own.use_banks(own.read_banks[own.current / 32], own.fiber().num_reads++, row, 16);
  const char* const* const rows = exchanged(row);
  for (int i = 0; i < 4; ++i) {
    unsigned short two[2];
    for (int j = 0; j < 2; ++j) {
      const int of_row = transposed ? lane % 4 * 2 + j : lane / 4;
      const int column = transposed ? lane / 4 : lane % 4 * 2 + j;
      std::memcpy(&two[j], rows[8 * i + of_row] + 2 * column, 2);
    }
    words[i] = two[0] | static_cast<unsigned>(two[1]) << 16;
  }
}

/// Notes an ordinary read of shared memory, for its banks.
inline void note_shared_read(const char* from, size_t bytes) {
  auto& own = longspan::testing::block();
  own.use_banks(own.read_banks[own.current / 32], own.fiber().num_reads++, from,
                static_cast<unsigned>(bytes));
}
// NOLINTEND
