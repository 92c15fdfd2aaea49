// CUDA runtime: streams and events. No work is ever pending, unless a GPU hangs.
#include <cuda_runtime_api.h>

#include <atomic>
#include <vector>

#include "core.h"
#include "runtime.h"

using namespace null_cuda;

namespace {

struct Handle {
  int device = current_device();
};

cudaError_t made_stream(cudaStream_t* stream) {
  *stream = reinterpret_cast<cudaStream_t>(new Handle);
  return cudaSuccess;
}
cudaError_t made_event(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new Handle);
  return cudaSuccess;
}

/// True if an event and the stream that it is recorded on belong to the same GPU. Streams 0 to 2
/// are default streams of the current GPU.
bool belong_together(cudaEvent_t event, cudaStream_t stream) {
  const int of_event = reinterpret_cast<Handle*>(event)->device;
  const auto number = reinterpret_cast<uintptr_t>(stream);
  return of_event == (number <= 2 ? current_device() : reinterpret_cast<Handle*>(stream)->device);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return made_stream(stream);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return made_stream(stream);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return made_stream(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<Handle*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  count_wait("cudaStreamSynchronize");
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/, unsigned) {
  count(Counted::kCalls, "cudaStreamWaitEvent");
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned /*flags*/) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t /*stream*/, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* /*graph*/,
                                     const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/, size_t* number) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  if (number != nullptr) *number = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) {
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return made_event(event); }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return made_event(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Handle*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  if (!belong_together(event, stream)) {
    complain("an event of one GPU is recorded on a stream of another");
    return failed(cudaErrorInvalidValue);
  }
  count(Counted::kCalls, "cudaEventRecord");
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) {
  return hangs() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  count_wait("cudaEventSynchronize");
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  static std::atomic<size_t> number = 0;
  const std::vector<float>& all = settings().milliseconds;
  *milliseconds = all[number++ % all.size()];
  return cudaSuccess;
}

}  // extern "C"
