// The end of an object that crosses a link over several connections, chunk by chunk.
//
// Whichever connection is free takes the next chunk of 1 MiB (common/transfer/wire.h). When none is
// left, the connections that still carry one go on at their share of the link, which nobody else
// uses now. TCP finds out slowly: BBR tries a quarter more once in eight round trips. On a thin
// link, where a chunk takes seconds, that is most of what a prediction from rates alone would miss.
#ifndef CAUSEWAY_SERVER_PLANNER_STRAGGLERS_H_
#define CAUSEWAY_SERVER_PLANNER_STRAGGLERS_H_

namespace causeway::server {

// How much later than at the link's full rate an object of so many bytes has crossed. 0 with one
// connection, and where every chunk has a connection of its own from the start: these share the
// link from the beginning to the end. Even sizes and rates are taken; real connections differ.
double StragglerSeconds(double bytes, double bit_per_s, int connections, double round_trip_seconds);

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_PLANNER_STRAGGLERS_H_
