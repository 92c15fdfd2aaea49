# The decoder of video files, a shared object of its own that the program loads when a row has such a file. It links
# FFmpeg's libraries, so the program itself needs none. Debian: libavformat-dev libavcodec-dev libswscale-dev libavutil-dev.
foreach(part avformat avcodec swscale avutil)
  find_path(FFMPEG_${part}_DIR lib${part}/${part}.h PATH_SUFFIXES ffmpeg)
  find_library(FFMPEG_${part} ${part})
  if(NOT FFMPEG_${part}_DIR OR NOT FFMPEG_${part})
    message(NOTICE "Videos: the decoder of video files is skipped: there is no lib${part} with its headers (Debian: lib${part}-dev)")
    return()
  endif()
  list(APPEND FFMPEG_DIRS ${FFMPEG_${part}_DIR})
  list(APPEND FFMPEG_LIBRARIES ${FFMPEG_${part}})
endforeach()
list(REMOVE_DUPLICATES FFMPEG_DIRS)

add_library(longspan_video SHARED video/entry.cpp)
target_include_directories(longspan_video PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(longspan_video SYSTEM PRIVATE ${FFMPEG_DIRS})
set_target_properties(longspan_video PROPERTIES CXX_VISIBILITY_PRESET hidden)
target_link_libraries(longspan_video PRIVATE ${FFMPEG_LIBRARIES})
target_link_options(longspan_video PRIVATE -Wl,--no-undefined)
add_dependencies(longspan longspan_video)  # which loads it from beside itself
