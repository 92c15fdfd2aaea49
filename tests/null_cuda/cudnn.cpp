// cuDNN: present, but fails to initialize, as on a GPU that it does not support.
#include <cudnn.h>

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_INITIALIZED";
}
void cudnnGetLastErrorString(char* text, size_t size) {
  if (size > 0) text[0] = '\0';
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* /*handle*/) { return CUDNN_STATUS_NOT_INITIALIZED; }
cudnnStatus_t cudnnDestroy(cudnnHandle_t /*handle*/) { return CUDNN_STATUS_SUCCESS; }

}  // extern "C"
