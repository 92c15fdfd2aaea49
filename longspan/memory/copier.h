// Copies between host and device that overlap with computation.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>

namespace longspan {

/// A handle of a copy or another job in progress. Copies of the handle refer to the same work.
class Copy {
 public:
  Copy() = default;
  bool defined() const { return state_ != nullptr; }
  /// Makes all later computation wait for the work: on CUDA the current stream waits, on the CPU
  /// the calling thread. Rethrows the exception of the work. May be called again.
  void wait() const;
  /// Blocks the calling thread until the work has ended, also on CUDA.
  void wait_on_host() const;

 private:
  friend class Copier;
  friend class Worker;
  struct State;
  explicit Copy(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// A thread that runs jobs one after the other. An exception of a job is rethrown to its waiters.
class Worker {
 public:
  /// `device`: the device that jobs get for "cuda" without an index.
  explicit Worker(at::Device device = at::kCPU);
  /// Finishes all jobs, then ends the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Queues a job. The job's captures are freed before its waiters continue.
  Copy run(std::function<void()> job);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The party that keeps a copy's device memory from reuse before the copy has ended.
enum class Keeper {
  kAllocator,  // torch's caching allocator (record_stream)
  kCaller,     // the caller: it holds the tensor until Copy::wait() on the tensor's own stream
};

/// Makes copies in the order in which they are started: on the CPU in a thread, on CUDA on two
/// streams, one for each direction. On CUDA, a copy also waits for copies of the other direction
/// that begin at the same host address.
class Copier {
 public:
  explicit Copier(at::Device device);
  /// Waits for all started copies. Does not throw.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  /// Copies source to target (contiguous, same shape and dtype) after all work that the device has
  /// been given so far. Keeps both tensors alive while the copy needs them, except for the device
  /// tensor with Keeper::kCaller. The caller must neither write to the source nor use the target
  /// before it has waited for the copy.
  Copy start(at::Tensor target, at::Tensor source, Keeper keeper = Keeper::kAllocator);
  /// Frees the host memory of finished copies, as the next start() does.
  void let_go_of_ended();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
