// Copies between host and device beside the computation.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>

namespace longspan {

/// A handle of a copy, or of other work, that is on its way. Copies of the handle mean the same
/// work.
class Copy {
 public:
  Copy() = default;
  bool defined() const { return state_ != nullptr; }
  /// Makes all later computation wait for it: on CUDA the current stream waits, on the CPU the
  /// caller. Rethrows what the work has thrown. May be called again.
  void wait() const;
  /// The caller itself waits, on CUDA too, where it has not ended.
  void wait_on_host() const;

 private:
  friend class Copier;
  friend class Worker;
  struct State;
  explicit Copy(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// A thread that does jobs one after the other. Those who wait for a job get what it throws.
class Worker {
 public:
  /// `device`: what its jobs mean by "cuda" without an index.
  explicit Worker(at::Device device = at::kCPU);
  /// Finishes all jobs, then ends the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Queues a job. What the job holds is freed before those who wait for it go on.
  Copy run(std::function<void()> job);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Who sees to it that the device's memory of a copy is nobody else's before the copy has ended.
enum class Keeper {
  kAllocator,  // torch's, which asks the device; until then the memory is not used again
  kCaller,     // holds the tensor until it has called Copy::wait() on the stream that it is of
};

/// Does one copy after the other, in the order in which they were started: on the CPU in a thread
/// of its own, on CUDA on two streams of its own, one for each direction. There a copy waits for
/// those of the other direction that begin at the same place of the host's memory.
class Copier {
 public:
  explicit Copier(at::Device device);
  /// Waits for what was started. Throws nothing.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  /// Copies source to target (contiguous, of one shape and dtype) once the device has computed what
  /// it was given so far. Keeps both tensors alive as long as it needs them, but for the device's
  /// where the caller does. Until the copy has been waited for, the caller must not write to the
  /// source nor use the target.
  Copy start(at::Tensor target, at::Tensor source, Keeper keeper = Keeper::kAllocator);
  /// Lets go of the host's memory of copies that have ended, as the next start does.
  void let_go_of_ended();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
