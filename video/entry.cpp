// Decodes video files by FFmpeg's libraries. A shared object of its own, so that the program needs
// them only for video files. FFmpeg gets the bytes of one file and can open no other: it has no
// protocol, and only the containers and decoders that are listed here.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

#include "longspan/pictures/video_entry.h"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avutil.h>
#include <libavutil/mem.h>
#include <libswscale/swscale.h>
}

namespace longspan {
namespace {

constexpr const char* kContainers = "mov,matroska,avi,gif";
// Decoders of audio are opened for the facts about a stream that the file does not say.
constexpr const char* kDecoders =
    "h264,hevc,libdav1d,libaom-av1,av1,vp8,vp9,mpeg4,msmpeg4,msmpeg4v2,msmpeg4v1,mpeg2video,"
    "mpeg1video,mjpeg,gif,png,rawvideo,ffv1,prores,"
    "aac,mp3float,mp3,opus,libopus,vorbis,ac3,eac3,flac,alac,pcm_s16le,pcm_s16be,pcm_u8";
constexpr int kMostStreams = 64;
constexpr int kBufferBytes = 1 << 16;
// At once: the largest frame as RGB. An index of samples has four such arrays.
constexpr size_t kMostAllocatedBytes = size_t{112} << 20;

/// The first error that FFmpeg has said in this thread since the last failure().
thread_local char said[256];

void take_message(void* /*source*/, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR || said[0] != '\0') return;
  std::vsnprintf(said, sizeof(said), format, arguments);
  for (size_t end = std::strlen(said); end > 0 && said[end - 1] == '\n'; --end) said[end - 1] = 0;
}

/// Fills `trouble`. `error`: FFmpeg's code, or 0.
void fail(VideoTrouble* trouble, const char* what, int error = 0) {
  char reason[AV_ERROR_MAX_STRING_SIZE] = {};
  if (error != 0) av_strerror(error, reason, sizeof(reason));
  std::snprintf(trouble->text, sizeof(trouble->text), "%s%s%s%s%s%s", what, error != 0 ? ": " : "",
                reason, said[0] != '\0' ? " (" : "", said, said[0] != '\0' ? ")" : "");
  said[0] = '\0';
}

struct Source {
  int descriptor;
  int64_t position = 0;
};

int read_bytes(void* opaque, uint8_t* to, int num_bytes) {
  auto* const source = static_cast<Source*>(opaque);
  const ssize_t count =
      pread(source->descriptor, to, static_cast<size_t>(num_bytes), source->position);
  if (count < 0) return AVERROR(errno);
  if (count == 0) return AVERROR_EOF;
  source->position += count;
  return static_cast<int>(count);
}

int64_t seek_bytes(void* opaque, int64_t offset, int whence) {
  auto* const source = static_cast<Source*>(opaque);
  struct stat status{};
  if (fstat(source->descriptor, &status) != 0) return AVERROR(errno);
  switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE:
      return status.st_size;
    case SEEK_SET:
      break;
    case SEEK_CUR:
      offset += source->position;
      break;
    case SEEK_END:
      offset += status.st_size;
      break;
    default:
      return AVERROR(EINVAL);
  }
  if (offset < 0) return AVERROR(EINVAL);
  source->position = offset;
  return offset;
}

int refuse_other_files(AVFormatContext* /*context*/, AVIOContext** /*file*/, const char* /*url*/,
                       int /*flags*/, AVDictionary** /*options*/) {
  return AVERROR(EACCES);
}

}  // namespace

struct OpenVideo {
  Source source{};
  AVIOContext* io = nullptr;
  AVFormatContext* format = nullptr;
  AVCodecContext* codec = nullptr;
  AVPacket* packet = av_packet_alloc();
  AVFrame* frame = av_frame_alloc();
  SwsContext* scaler = nullptr;
  int stream = -1;
  bool at_end = false;
  int64_t most_pixels = 0;
  VideoHeader header{};

  OpenVideo() = default;
  OpenVideo(const OpenVideo&) = delete;
  OpenVideo& operator=(const OpenVideo&) = delete;
  ~OpenVideo() {
    sws_freeContext(scaler);
    av_frame_free(&frame);
    av_packet_free(&packet);
    avcodec_free_context(&codec);
    avformat_close_input(&format);
    if (io != nullptr) av_freep(&io->buffer);
    avio_context_free(&io);
  }
};

namespace {

/// Options of a decoder, for avformat_find_stream_info and avcodec_open2.
AVDictionary* decoder_options(int64_t most_pixels) {
  AVDictionary* options = nullptr;
  av_dict_set_int(&options, "threads", 1, 0);
  av_dict_set_int(&options, "max_pixels", most_pixels, 0);
  av_dict_set(&options, "codec_whitelist", kDecoders, 0);
  return options;
}

int find_streams(OpenVideo& video) {
  const unsigned count = video.format->nb_streams;
  AVDictionary* options[kMostStreams] = {};
  if (count > kMostStreams) return AVERROR_INVALIDDATA;
  for (unsigned i = 0; i < count; ++i) options[i] = decoder_options(video.most_pixels);
  const int error = avformat_find_stream_info(video.format, count > 0 ? options : nullptr);
  for (AVDictionary*& each : options) av_dict_free(&each);
  return error;
}

bool open_container(OpenVideo& video, VideoTrouble* trouble) {
  video.format = avformat_alloc_context();
  auto* const buffer = static_cast<uint8_t*>(av_malloc(kBufferBytes));
  if (video.format == nullptr || buffer == nullptr || video.packet == nullptr ||
      video.frame == nullptr) {
    av_free(buffer);
    fail(trouble, "there is no memory for the video");
    return false;
  }
  video.io =
      avio_alloc_context(buffer, kBufferBytes, 0, &video.source, read_bytes, nullptr, seek_bytes);
  if (video.io == nullptr) {
    av_free(buffer);
    fail(trouble, "there is no memory for the video");
    return false;
  }
  video.format->pb = video.io;
  video.format->io_open = refuse_other_files;
  video.format->max_streams = kMostStreams;
  AVDictionary* options = nullptr;
  av_dict_set(&options, "format_whitelist", kContainers, 0);
  av_dict_set(&options, "codec_whitelist", kDecoders, 0);
  av_dict_set(&options, "protocol_whitelist", "", 0);
  int error = avformat_open_input(&video.format, "", nullptr, &options);
  av_dict_free(&options);
  if (error < 0) {
    fail(trouble,
         "it is no video in a container that is read (mp4, mov, mkv, webm, avi, gif), or it is "
         "broken",
         error);
    return false;
  }
  error = find_streams(video);
  if (error < 0) fail(trouble, "its streams cannot be read", error);
  return error >= 0;
}

bool open_decoder(OpenVideo& video, VideoTrouble* trouble) {
  for (unsigned i = 0; i < video.format->nb_streams && video.stream < 0; ++i) {
    if (video.format->streams[i]->codecpar->codec_type == AVMEDIA_TYPE_VIDEO) {
      video.stream = static_cast<int>(i);
    }
  }
  if (video.stream < 0) {
    fail(trouble, "it has no video stream");
    return false;
  }
  const AVStream& stream = *video.format->streams[video.stream];
  const AVCodec* const decoder = avcodec_find_decoder(stream.codecpar->codec_id);
  if (decoder == nullptr) {
    fail(trouble, "the installed FFmpeg has no decoder for its codec");
    return false;
  }
  video.codec = avcodec_alloc_context3(decoder);
  int error = video.codec == nullptr ? AVERROR(ENOMEM)
                                     : avcodec_parameters_to_context(video.codec, stream.codecpar);
  if (error >= 0) {
    video.codec->pkt_timebase = stream.time_base;
    AVDictionary* options = decoder_options(video.most_pixels);
    error = avcodec_open2(video.codec, decoder, &options);
    av_dict_free(&options);
  }
  if (error >= 0) error = av_seek_frame(video.format, -1, 0, AVSEEK_FLAG_BACKWARD);
  if (error < 0) fail(trouble, "its frames cannot be decoded", error);
  return error >= 0;
}

VideoHeader header_of(const OpenVideo& video) {
  const AVStream& stream = *video.format->streams[video.stream];
  VideoHeader header{.width = stream.codecpar->width,
                     .height = stream.codecpar->height,
                     .num_frames = stream.nb_frames};
  if (stream.duration != AV_NOPTS_VALUE) {
    header.ticks = stream.duration;
    header.tick_num = stream.time_base.num;
    header.tick_den = stream.time_base.den;
  }
  if (stream.avg_frame_rate.num != 0 && stream.avg_frame_rate.den != 0) {
    header.rate_num = stream.avg_frame_rate.num;
    header.rate_den = stream.avg_frame_rate.den;
  }
  return header;
}

OpenVideo* open_video(int descriptor, int64_t most_pixels, VideoHeader* header,
                      VideoTrouble* trouble) {
  said[0] = '\0';
  auto video = std::make_unique<OpenVideo>();
  video->source.descriptor = descriptor;
  video->most_pixels = most_pixels;
  if (!open_container(*video, trouble) || !open_decoder(*video, trouble)) return nullptr;
  for (unsigned i = 0; i < video->format->nb_streams; ++i) {
    if (static_cast<int>(i) != video->stream) video->format->streams[i]->discard = AVDISCARD_ALL;
  }
  *header = video->header = header_of(*video);
  return video.release();
}

void close_video(OpenVideo* video) { delete video; }

/// Reads the stream's next packet. 0, or FFmpeg's code: also AVERROR_EOF.
int next_packet(OpenVideo& video) {
  while (true) {
    av_packet_unref(video.packet);
    const int error = av_read_frame(video.format, video.packet);
    if (error < 0 || video.packet->stream_index == video.stream) return error;
  }
}

int64_t count_packets(OpenVideo* video, VideoTrouble* trouble) {
  int64_t count = 0;
  while (true) {
    const int error = next_packet(*video);
    if (error == AVERROR_EOF) return count;
    if (error < 0) {
      fail(trouble, "its data cannot be read", error);
      return -1;
    }
    if ((video->packet->flags & AV_PKT_FLAG_DISCARD) == 0) ++count;
  }
}

VideoStep next_frame(OpenVideo* video, VideoTrouble* trouble) {
  while (true) {
    int error = avcodec_receive_frame(video->codec, video->frame);
    if (error == AVERROR_EOF) return VideoStep::kEnd;
    if (error >= 0) {
      if (video->frame->width == video->header.width &&
          video->frame->height == video->header.height) {
        return VideoStep::kFrame;
      }
      fail(trouble, "a frame has another size than the video");
      return VideoStep::kTrouble;
    }
    if (error == AVERROR(EAGAIN) && !video->at_end) {
      error = next_packet(*video);
      video->at_end = error == AVERROR_EOF;
      if (error >= 0 || video->at_end) {
        error = avcodec_send_packet(video->codec, video->at_end ? nullptr : video->packet);
      }
    }
    if (error < 0) {
      fail(trouble, "a frame cannot be decoded", error);
      return VideoStep::kTrouble;
    }
  }
}

/// The conversion of PyAV's VideoFrame.to_image(): bilinear, with the coefficients of ITU-R BT.601
/// whatever the file says.
bool write_rgb(OpenVideo* video, uint8_t* to, VideoTrouble* trouble) {
  const AVFrame& frame = *video->frame;
  const auto format = static_cast<AVPixelFormat>(frame.format);
  video->scaler =
      sws_getCachedContext(video->scaler, frame.width, frame.height, format, frame.width,
                           frame.height, AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr);
  const std::unique_ptr<AVFrame, void (*)(AVFrame*)> rgb(av_frame_alloc(),
                                                         [](AVFrame* f) { av_frame_free(&f); });
  if (video->scaler == nullptr || rgb == nullptr) {
    fail(trouble, "its pixels cannot be converted");
    return false;
  }
  rgb->format = AV_PIX_FMT_RGB24;
  rgb->width = frame.width;
  rgb->height = frame.height;
  int error = av_frame_get_buffer(rgb.get(), 0);
  if (error >= 0) {
    error = sws_scale(video->scaler, frame.data, frame.linesize, 0, frame.height, rgb->data,
                      rgb->linesize);
  }
  if (error < 0) {
    fail(trouble, "its pixels cannot be converted", error);
    return false;
  }
  const auto row = static_cast<size_t>(frame.width) * 3;
  for (int y = 0; y < frame.height; ++y) {
    std::memcpy(to + static_cast<size_t>(y) * row,
                rgb->data[0] + static_cast<ptrdiff_t>(y) * rgb->linesize[0], row);
  }
  return true;
}

}  // namespace
}  // namespace longspan

extern "C" __attribute__((visibility("default"))) const longspan::VideoEntry*
longspan_video_entry() {
  static const longspan::VideoEntry entry = [] {
    av_log_set_callback(longspan::take_message);
    av_max_alloc(longspan::kMostAllocatedBytes);
    return longspan::VideoEntry{.ffmpeg = av_version_info(),
                                .open = longspan::open_video,
                                .close = longspan::close_video,
                                .count_packets = longspan::count_packets,
                                .next = longspan::next_frame,
                                .rgb = longspan::write_rgb};
  }();
  return &entry;
}
