/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What fi_getinfo answers: to no hints, to its own answers, to what each MPI asks, and to what cannot be had.
 *
 * usage: getinfo LIBFABRIC...
 *
 * Several copies are used side by side in this one process, and each is closed and opened again, as MPIs do that are made
 * of plug-ins.
 */
#include "harness.h"

#include <malloc.h>

static struct fi_info *ask_for(uint32_t api, const char *node, const char *service, uint64_t flags,
			       struct fi_info *hints, int expected)
{
	struct fi_info *info = NULL, *found = NULL;
	int r = lf.getinfo(api, node, service, flags, hints, &info);
	if (expected == 0 && r != 0)
		FAIL("refused with %d", r);
	if (expected != 0 && hints && hints->fabric_attr->prov_name)
		EQUAL(r, expected); /* nobody else answers */
	/* Without a name among the hints others answer too. */
	for (struct fi_info *i = info; i && r == 0; i = i->next)
		if (!strcmp(i->fabric_attr->prov_name, "isthmus")) {
			/* The core copies its own sizes, which may be newer than these headers'. */
			CHECK(malloc_usable_size(i->domain_attr) >= 224 && malloc_usable_size(i->tx_attr) >= 80);
			CHECK(malloc_usable_size(i->rx_attr) >= 64 && malloc_usable_size(i->ep_attr) >= 96);
			CHECK(malloc_usable_size(i->fabric_attr) >= 32 && malloc_usable_size(i) >= 120);
			CHECK(!found); /* one entry */
			found = lf.dupinfo(i);
		}
	if (info)
		lf.freeinfo(info);
	if (expected == 0)
		CHECK(found);
	else if (found)
		FAIL("not refused");
	return found;
}

static struct fi_info *ask(uint32_t api, struct fi_info *hints, uint64_t flags, int expected)
{
	return ask_for(api, NULL, NULL, flags, hints, expected);
}

/* The newest API version that this libfabric and the tests know. */
#define NEWEST (lf.version() < FI_VERSION(2, 5) ? FI_VERSION(1, 17) : FI_VERSION(2, 5))

static struct fi_info *blank(void)
{
	struct fi_info *hints = lf.dupinfo(NULL);
	hints->fabric_attr->prov_name = strdup("isthmus");
	return hints;
}

static void own_answers(void)
{
	test_name = "own answers";
	uint32_t apis[] = {FI_VERSION(1, 0), FI_VERSION(1, 5), FI_VERSION(1, 9), FI_VERSION(1, 17), lf.version()};
	for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
		if (apis[i] > lf.version())
			continue;
		struct fi_info *info = ask(apis[i], NULL, 0, 0);
		CHECK((info->caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_MULTI_RECV)) ==
		      (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_MULTI_RECV));
		CHECK(!(info->caps & FI_SOURCE));
		EQUAL(info->mode, 0);
		EQUAL(info->ep_attr->type, FI_EP_RDM);
		EQUAL(info->domain_attr->mr_mode, apis[i] < FI_VERSION(1, 5) ? FI_MR_SCALABLE : 0);
		CHECK(info->tx_attr->inject_size >= 64);
		CHECK(info->domain_attr->name && info->fabric_attr->name);
		/* Counters without a limit: members that these headers may not have. */
		if (apis[i] >= FI_VERSION(2, 5)) {
			const uint64_t *attr = (const uint64_t *)info->domain_attr;
			CHECK(attr[26] == UINT64_MAX && attr[27] == UINT64_MAX);
		}
		struct fi_info *again = ask(apis[i], info, 0, 0);
		EQUAL(again->caps, info->caps);
		lf.freeinfo(again);
		lf.freeinfo(info);
	}
	lf.freeinfo(ask(0, NULL, 0, 0));
}

/* The version that a program asks with, or the newest that this libfabric has: more it refuses itself. */
static uint32_t at_most(uint32_t api)
{
	return api < lf.version() ? api : lf.version();
}

static void mpich(void)
{
	test_name = "what MPICH 5 asks";
	const uint32_t api = at_most(FI_VERSION(2, 5));
	struct fi_info *first = ask(api, NULL, 0, 0);
	struct fi_info *h = blank();
	h->caps = first->caps;
	h->mode = FI_CONTEXT | FI_CONTEXT2 | FI_ASYNC_IOV | FI_RX_CQ_DATA;
	h->domain_attr->mr_mode = FI_MR_ENDPOINT;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->control_progress = h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->domain_attr->av_type = FI_AV_TABLE;
	h->domain_attr->cq_data_size = 4;
	h->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
	h->rx_attr->op_flags = FI_COMPLETION;
	h->tx_attr->msg_order =
		FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
	h->rx_attr->msg_order = FI_ORDER_SAS;
	h->ep_attr->mem_tag_format = 0x00c000007fffffffULL;
	struct fi_info *info = ask(api, h, 0, 0);
	EQUAL(info->fabric_attr->api_version, api);
	EQUAL(info->caps, first->caps);
	EQUAL(info->domain_attr->threading, FI_THREAD_DOMAIN);
	EQUAL(info->domain_attr->av_type, FI_AV_TABLE);
	EQUAL(info->domain_attr->mr_mode, 0);
	EQUAL(info->tx_attr->op_flags, h->tx_attr->op_flags);
	CHECK(info->domain_attr->cq_data_size >= 4);
	CHECK(info->domain_attr->max_ep_tx_ctx <= 1);
	CHECK(info->ep_attr->max_order_raw_size == SIZE_MAX);
	lf.freeinfo(info);
	lf.freeinfo(h);
	lf.freeinfo(first);
}

/* Each component of Open MPI 5 asks with 1.18, for device memory first, and where that comes to nothing with 1.9. */
static void open_mpi_at(uint32_t api)
{
	/* Messages, with device memory first. */
	struct fi_info *h = blank();
	h->caps = FI_MSG | FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV | FI_HMEM;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->domain_attr->mr_mode = FI_MR_HMEM | FI_MR_ALLOCATED;
	h->domain_attr->threading = FI_THREAD_SAFE;
	h->domain_attr->av_type = FI_AV_MAP;
	h->domain_attr->cq_data_size = 4;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->op_flags = h->rx_attr->op_flags = FI_COMPLETION;
	h->ep_attr->type = FI_EP_RDM;
	ask(api, h, 0, -FI_ENODATA);
	h->caps &= ~FI_HMEM;
	h->domain_attr->mr_mode = FI_MR_ALLOCATED;
	struct fi_info *info = ask(api, h, 0, 0);
	EQUAL(info->fabric_attr->api_version, api);
	EQUAL(info->domain_attr->mr_mode, 0);
	EQUAL(info->domain_attr->threading, FI_THREAD_SAFE);
	EQUAL(info->domain_attr->av_type, FI_AV_MAP);
	CHECK(!(info->caps & (FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE)));
	CHECK(info->ep_attr->mem_tag_format >> 63);
	/* One-sided operations, with the objects of the first; device memory first here too. */
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	EQUAL(lf.fabric(info->fabric_attr, &fabric, NULL), 0);
	EQUAL(fi_domain(fabric, info, &domain, NULL), 0);
	struct fi_info *b = blank();
	b->caps = FI_RMA | FI_ATOMIC | FI_HMEM;
	b->mode = FI_CONTEXT | FI_CONTEXT2;
	b->domain_attr->mr_mode = 0x670; /* HMEM, ENDPOINT, PROV_KEY, ALLOCATED, VIRT_ADDR */
	b->domain_attr->threading = FI_THREAD_SAFE;
	b->ep_attr->type = FI_EP_RDM;
	b->tx_attr->op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
	b->rx_attr->op_flags = FI_COMPLETION;
	b->tx_attr->iov_limit = b->rx_attr->iov_limit = 1;
	b->fabric_attr->fabric = fabric;
	b->domain_attr->domain = domain;
	ask(api, b, 0, -FI_ENODATA);
	b->caps &= ~FI_HMEM;
	b->domain_attr->mr_mode = 0x270;
	struct fi_info *rma = ask(api, b, 0, 0);
	CHECK(rma->fabric_attr->fabric == fabric && rma->domain_attr->domain == domain);
	EQUAL(rma->domain_attr->mr_mode, 0);
	EQUAL(rma->tx_attr->op_flags, FI_DELIVERY_COMPLETE | FI_COMPLETION);
	EQUAL(rma->tx_attr->iov_limit, 1);
	CHECK(!(rma->caps & (FI_MSG | FI_TAGGED | FI_SEND)));
	EQUAL(fi_close(&domain->fid), 0);
	EQUAL(fi_close(&fabric->fid), 0);
	b->fabric_attr->fabric = NULL;
	b->domain_attr->domain = NULL;
	lf.freeinfo(rma);
	lf.freeinfo(b);
	lf.freeinfo(info);
	lf.freeinfo(h);
}

static void open_mpi(void)
{
	test_name = "what Open MPI 5 asks, at 1.18";
	open_mpi_at(at_most(FI_VERSION(1, 18)));
	test_name = "what Open MPI 5 asks, at 1.9";
	open_mpi_at(FI_VERSION(1, 9));
}

static void refusals(void)
{
	test_name = "refusals";
	struct fi_info *h;
#define REFUSED(change)                                                                                  \
	do {                                                                                             \
		h = blank();                                                                             \
		change;                                                                                  \
		test_name = #change;                                                                     \
		ask(FI_VERSION(1, 17), h, 0, -FI_ENODATA);                                               \
		lf.freeinfo(h);                                                                          \
	} while (0)
	REFUSED(h->caps = FI_COLLECTIVE);
	REFUSED(h->caps = FI_TAGGED | FI_NAMED_RX_CTX);
	REFUSED(h->caps = FI_RMA | FI_RMA_EVENT);
	REFUSED(h->ep_attr->type = FI_EP_MSG);
	REFUSED(h->ep_attr->type = FI_EP_DGRAM);
	REFUSED(h->addr_format = FI_SOCKADDR_IN);
	REFUSED(h->domain_attr->data_progress = FI_PROGRESS_AUTO);
	REFUSED(h->domain_attr->cq_data_size = 9);
	REFUSED(h->tx_attr->inject_size = 1 << 20);
	REFUSED(h->tx_attr->iov_limit = 1000);
	REFUSED(h->tx_attr->msg_order = FI_ORDER_WAS);
	REFUSED(h->tx_attr->op_flags = FI_COMMIT_COMPLETE);
	REFUSED(h->tx_attr->comp_order = FI_ORDER_SAS);
	REFUSED(h->fabric_attr->name = strdup("elsewhere"));
	REFUSED(h->domain_attr->name = strdup("elsewhere"));
	REFUSED(h->fabric_attr->name = strdup("isthmus")); /* the provider's name is not the fabric's */
	REFUSED(h->domain_attr->name = strdup("isthmus"));
	REFUSED(h->caps = FI_MSG | FI_HMEM);
	REFUSED(h->caps = 1ULL << 55); /* a bit that means nothing */
	REFUSED(h->domain_attr->control_progress = FI_PROGRESS_AUTO);
	REFUSED(h->domain_attr->mr_key_size = 9);
	REFUSED(h->domain_attr->mr_mode = FI_MR_BASIC | FI_MR_VIRT_ADDR);
	REFUSED(h->domain_attr->mr_mode = FI_MR_SCALABLE | FI_MR_LOCAL);
	REFUSED(h->domain_attr->mr_mode = FI_MR_BASIC | FI_MR_SCALABLE);
	REFUSED(h->domain_attr->max_ep_tx_ctx = 2);
	REFUSED(h->domain_attr->max_ep_stx_ctx = 1);
	REFUSED(h->domain_attr->mr_iov_limit = 2);
	REFUSED(h->domain_attr->threading = 77);
	REFUSED(h->domain_attr->av_type = 77);
	REFUSED(h->rx_attr->op_flags = FI_INJECT);
	REFUSED(h->rx_attr->comp_order = FI_ORDER_SAS);
	REFUSED(h->rx_attr->iov_limit = 1000);
	REFUSED(h->tx_attr->rma_iov_limit = 2);
	REFUSED(h->tx_attr->size = SIZE_MAX);
	REFUSED(h->tx_attr->caps = FI_COLLECTIVE);
	REFUSED(h->rx_attr->caps = FI_COLLECTIVE);
	REFUSED(h->ep_attr->max_msg_size = SIZE_MAX);
	REFUSED(h->ep_attr->msg_prefix_size = 8);
	REFUSED(h->ep_attr->tx_ctx_cnt = 2);
	REFUSED(h->ep_attr->protocol = FI_PROTO_RXM);
	REFUSED(h->ep_attr->auth_key_size = 8; h->ep_attr->auth_key = calloc(1, 8));
	REFUSED(h->rx_attr->op_flags = FI_BUFFERED_RECV);
	REFUSED(h->domain_attr->cq_cnt = SIZE_MAX);
	REFUSED(h->domain_attr->ep_cnt = SIZE_MAX);
	REFUSED(h->domain_attr->cntr_cnt = SIZE_MAX);
	REFUSED(h->domain_attr->mr_cnt = SIZE_MAX);
	REFUSED(h->domain_attr->tx_ctx_cnt = SIZE_MAX);
	REFUSED(h->domain_attr->rx_ctx_cnt = SIZE_MAX);
	REFUSED(h->domain_attr->max_ep_rx_ctx = 2);
	REFUSED(h->domain_attr->max_ep_srx_ctx = 1);
	REFUSED(h->domain_attr->max_err_data = 1);
	REFUSED(h->domain_attr->caps = FI_SHARED_AV);
	REFUSED(h->domain_attr->resource_mgmt = 77);
	REFUSED(h->domain_attr->control_progress = 77);
	REFUSED(h->domain_attr->data_progress = 77);
	REFUSED(h->ep_attr->protocol_version = 2);
	REFUSED(h->ep_attr->rx_ctx_cnt = 2);
	REFUSED(h->rx_attr->size = SIZE_MAX);
	REFUSED(h->rx_attr->msg_order = FI_ORDER_SAW);
	/* One more than is answered. */
	struct fi_info *own = ask(FI_VERSION(1, 17), NULL, 0, 0);
	REFUSED(h->domain_attr->cq_cnt = own->domain_attr->cq_cnt + 1);
	REFUSED(h->domain_attr->ep_cnt = own->domain_attr->ep_cnt + 1);
	REFUSED(h->domain_attr->cntr_cnt = own->domain_attr->cntr_cnt + 1);
	REFUSED(h->domain_attr->mr_cnt = own->domain_attr->mr_cnt + 1);
	REFUSED(h->tx_attr->inject_size = own->tx_attr->inject_size + 1);
	REFUSED(h->tx_attr->iov_limit = own->tx_attr->iov_limit + 1);
	REFUSED(h->rx_attr->iov_limit = own->rx_attr->iov_limit + 1);
	REFUSED(h->ep_attr->max_msg_size = own->ep_attr->max_msg_size + 1);
	lf.freeinfo(own);
	test_name = "the internal query of a layered provider";
	h = blank();
	ask(FI_VERSION(1, 17), h, 1ULL << 59, -FI_ENODATA);
	lf.freeinfo(h);
}

/* Names of endpoints. A node is a member of the region, and a service is what an endpoint there was opened under. */
static void names(void)
{
	static const struct {
		const char *node, *service;
		uint64_t flags;
		bool is_source, is_dest;
	} all[] = {
		{"localhost", NULL, 0, false, true},
		{"127.0.0.1", NULL, FI_NUMERICHOST, false, true},
		{"127.0.0.1", "7471", 0, false, true},
		{"localhost", "a service, not a port: 32 bytes.", 0, false, true},
		{NULL, "7471", 0, false, true},
		{NULL, "7471", FI_SOURCE, true, false},
		{"localhost", "7471", FI_SOURCE, true, false},
		{"::1", "7471", FI_SOURCE | FI_NUMERICHOST, true, false},
		{"localhost", NULL, FI_SOURCE, true, false},
		/* No member; a name where none may be; too long. */
		{"nowhere.invalid", NULL, 0, false, false},
		{"nowhere.invalid", "7471", 0, false, false},
		{"192.0.2.1", "7471", 0, false, false},
		{"192.0.2.1", "7471", FI_SOURCE, false, false},
		{"localhost", "7471", FI_NUMERICHOST, false, false},
		{NULL, "a service that has thirty-three b", 0, false, false},
	};
	char host[256];
	CHECK(gethostname(host, sizeof host) == 0);
	struct fi_info *h = blank(), *i;
	test_name = "names";
	for (size_t k = 0; k < sizeof all / sizeof *all; k++)
		for (int newest = 0; newest < 2; newest++) {
			bool refused = !all[k].is_source && !all[k].is_dest;
			i = ask_for(newest ? NEWEST : FI_VERSION(1, 17), all[k].node, all[k].service, all[k].flags, h,
				    refused ? -FI_ENODATA : 0);
			if (refused)
				continue;
			/* There is always a source; that of no service in particular ends in zeros. */
			CHECK(i->src_addr && i->src_addrlen == 64);
			CHECK(!!((char *)i->src_addr)[32] == (all[k].is_source && all[k].service));
			if (!!i->dest_addr != all[k].is_dest)
				FAIL("name %zu: destination %d", k, !!i->dest_addr);
			EQUAL(i->dest_addrlen, all[k].is_dest ? 64 : 0);
			/* Taken back as hints, with and without more names. */
			struct fi_info *again = ask(NEWEST, i, 0, 0);
			CHECK(again->src_addr && !memcmp(again->src_addr, i->src_addr, 64));
			CHECK(!i->dest_addr || (again->dest_addr && !memcmp(again->dest_addr, i->dest_addr, 64)));
			lf.freeinfo(again);
			lf.freeinfo(i);
		}
	test_name = "one name, however its node is written";
	struct fi_info *one = ask_for(NEWEST, NULL, "7471", 0, h, 0);
	static const char *const nodes[] = {"localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", NULL};
	for (size_t k = 0; k < sizeof nodes / sizeof *nodes; k++) {
		i = ask_for(NEWEST, nodes[k] ? nodes[k] : host, "7471", 0, h, 0);
		CHECK(!memcmp(i->dest_addr, one->dest_addr, 64));
		lf.freeinfo(i);
	}
	test_name = "the hints' own addresses beside names";
	struct fi_info *both = ask_for(NEWEST, NULL, "1", FI_SOURCE, one, 0);
	CHECK(both->src_addr && both->dest_addr && !memcmp(both->dest_addr, one->dest_addr, 64));
	i = ask_for(NEWEST, NULL, "2", 0, both, 0);
	CHECK(!memcmp(i->src_addr, both->src_addr, 64) && memcmp(i->dest_addr, one->dest_addr, 64));
	lf.freeinfo(i);
	i = ask_for(NEWEST, NULL, "2", FI_SOURCE, both, 0);
	CHECK(memcmp(i->src_addr, both->src_addr, 64) && !memcmp(i->dest_addr, one->dest_addr, 64));
	lf.freeinfo(i);
	lf.freeinfo(both);
	lf.freeinfo(one);

	test_name = "a source that is another member's";
	i = ask_for(NEWEST, NULL, "7471", FI_SOURCE, h, 0);
	((char *)i->src_addr)[24] ^= 1;
	ask(NEWEST, i, 0, -FI_ENODATA);
	lf.freeinfo(i);
	lf.freeinfo(h);
}

/* Addresses of endpoints among the hints. */
static void places(void)
{
	struct side s;
	struct fi_info *h, *i;
	test_name = "a source that is left open";
	h = blank();
	i = ask(NEWEST, h, FI_SOURCE, 0);
	CHECK(i->src_addr && i->src_addrlen == 64 && !i->dest_addr);
	lf.freeinfo(i);
	open_side(&s, NULL);
	char name[64];
	size_t len = sizeof name;
	EQUAL(fi_getname(&s.ep->fid, name, &len), 0);
	test_name = "a destination by address";
	h->dest_addr = malloc(len);
	h->dest_addrlen = len;
	memcpy(h->dest_addr, name, len);
	i = ask(NEWEST, h, 0, 0);
	EQUAL(i->dest_addrlen, len);
	CHECK(i->dest_addr != h->dest_addr && !memcmp(i->dest_addr, name, len));
	EQUAL(i->src_addrlen, 64);
	/* Taken back, too. */
	lf.freeinfo(ask(NEWEST, i, 0, 0));
	lf.freeinfo(i);
	test_name = "a destination by half an address";
	h->dest_addrlen = len / 2;
	ask(NEWEST, h, 0, -FI_ENODATA);
	test_name = "a destination in another region";
	h->dest_addrlen = len;
	((char *)h->dest_addr)[8] ^= 1;
	ask(NEWEST, h, 0, -FI_ENODATA);
	test_name = "a destination that is no address";
	memset(h->dest_addr, 0, len);
	ask(NEWEST, h, 0, -FI_ENODATA);
	test_name = "a source by address";
	free(h->dest_addr);
	h->dest_addr = NULL;
	h->dest_addrlen = 0;
	h->src_addr = malloc(len);
	h->src_addrlen = len;
	memcpy(h->src_addr, name, len);
	ask(NEWEST, h, 0, -FI_ENODATA);
	lf.freeinfo(h);
	close_side(&s);
}

/* Another provider's objects, and its names, are not ours. */
static void strangers(const struct fi_info *other)
{
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fi_info *h = blank(), *copy = lf.dupinfo(other);
	test_name = "another provider's objects";
	EQUAL(lf.fabric(copy->fabric_attr, &fabric, NULL), 0);
	EQUAL(fi_domain(fabric, copy, &domain, NULL), 0);
	h->fabric_attr->fabric = fabric;
	ask(FI_VERSION(1, 17), h, 0, -FI_ENODATA);
	h->fabric_attr->fabric = NULL;
	h->domain_attr->domain = domain;
	ask(FI_VERSION(1, 17), h, 0, -FI_ENODATA);
	h->domain_attr->domain = NULL;
	EQUAL(fi_close(&domain->fid), 0);
	EQUAL(fi_close(&fabric->fid), 0);
	test_name = "another provider's names";
	h->fabric_attr->name = strdup(other->fabric_attr->name);
	ask(FI_VERSION(1, 17), h, 0, -FI_ENODATA);
	free(h->fabric_attr->name);
	h->fabric_attr->name = NULL;
	h->domain_attr->name = strdup(other->domain_attr->name);
	ask(FI_VERSION(1, 17), h, 0, -FI_ENODATA);
	lf.freeinfo(h);
	lf.freeinfo(copy);
}

/* Objects that are open already: another provider's, and our own on other terms. */
static void open_objects(void)
{
	struct fi_info *h, *i, *all = NULL;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	/* Intel's copy of libfabric has no other one with it. */
	if (lf.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &all) == 0) {
		for (i = all; i; i = i->next)
			if (!strcmp(i->fabric_attr->prov_name, "sockets") && i->ep_attr->type == FI_EP_RDM) {
				strangers(i);
				break;
			}
		lf.freeinfo(all);
	}
	/* How a domain was opened is how whatever shares it has to take it. */
	static const struct {
		int threading, mr_mode, asked_threading, asked_mode, result, answer;
	} terms[] = {
		{FI_THREAD_DOMAIN, 0, FI_THREAD_DOMAIN, 0x270, 0, FI_THREAD_DOMAIN},
		{FI_THREAD_DOMAIN, 0, FI_THREAD_UNSPEC, 0, 0, FI_THREAD_DOMAIN},
		{FI_THREAD_DOMAIN, 0, FI_THREAD_SAFE, 0, -FI_ENODATA, 0},
		{FI_THREAD_DOMAIN, 0, FI_THREAD_COMPLETION, 0, -FI_ENODATA, 0},
		{FI_THREAD_SAFE, 0, FI_THREAD_UNSPEC, 0, 0, FI_THREAD_SAFE},
		{FI_THREAD_SAFE, 0, FI_THREAD_DOMAIN, 0, 0, FI_THREAD_DOMAIN},
		{FI_THREAD_SAFE, 0, FI_THREAD_SAFE, FI_MR_BASIC, -FI_ENODATA, 0},
		{FI_THREAD_SAFE, FI_MR_BASIC, FI_THREAD_SAFE, FI_MR_BASIC, 0, FI_THREAD_SAFE},
		{FI_THREAD_SAFE, FI_MR_BASIC, FI_THREAD_SAFE, 0x270, -FI_ENODATA, 0},
		{FI_THREAD_SAFE, FI_MR_SCALABLE, FI_THREAD_SAFE, 0, 0, FI_THREAD_SAFE},
	};
	for (size_t k = 0; k < sizeof terms / sizeof *terms; k++) {
		char name[64];
		sprintf(name, "an open domain on other terms, %zu", k);
		test_name = name;
		h = blank();
		h->domain_attr->threading = terms[k].threading;
		h->domain_attr->mr_mode = terms[k].mr_mode;
		i = ask(FI_VERSION(1, 17), h, 0, 0);
		EQUAL(lf.fabric(i->fabric_attr, &fabric, NULL), 0);
		EQUAL(fi_domain(fabric, i, &domain, NULL), 0);
		lf.freeinfo(i);
		h->domain_attr->threading = terms[k].asked_threading;
		h->domain_attr->mr_mode = terms[k].asked_mode;
		h->fabric_attr->fabric = fabric;
		h->domain_attr->domain = domain;
		i = ask(FI_VERSION(1, 17), h, 0, terms[k].result);
		if (i) {
			EQUAL(i->domain_attr->threading, terms[k].answer);
			CHECK(i->domain_attr->domain == domain && i->fabric_attr->fabric == fabric);
			lf.freeinfo(i);
		}
		h->fabric_attr->fabric = NULL;
		h->domain_attr->domain = NULL;
		lf.freeinfo(h);
		EQUAL(fi_close(&domain->fid), 0);
		EQUAL(fi_close(&fabric->fid), 0);
	}
	test_name = "open objects";
}

/* Registration modes of callers from before 1.5, where they are no bits: 0 is either of the two. */
static void old_callers(void)
{
	static const uint32_t apis[] = {0, FI_VERSION(1, 0), FI_VERSION(1, 3), FI_VERSION(1, 4)};
	static const int modes[][2] = {{FI_MR_UNSPEC, FI_MR_SCALABLE}, {FI_MR_BASIC, FI_MR_BASIC}, {FI_MR_SCALABLE, FI_MR_SCALABLE}};
	test_name = "registration modes of old callers";
	for (size_t a = 0; a < sizeof apis / sizeof *apis; a++)
		for (size_t m = 0; m < 3; m++)
			for (int caps = 0; caps < 2; caps++) {
				struct fi_info *h = blank();
				h->caps = caps ? FI_MSG | FI_RMA : 0;
				h->domain_attr->mr_mode = modes[m][0];
				struct fi_info *i = ask(apis[a], h, 0, 0);
				EQUAL(i->domain_attr->mr_mode, modes[m][1]);
				EQUAL(i->mode, 0);
				lf.freeinfo(i);
				h->domain_attr->mr_mode = FI_MR_BASIC | FI_MR_SCALABLE;
				ask(apis[a], h, 0, -FI_ENODATA);
				h->domain_attr->mr_mode = FI_MR_VIRT_ADDR; /* a bit, of later versions */
				ask(apis[a], h, 0, -FI_ENODATA);
				lf.freeinfo(h);
			}
}


/* What each attribute is answered with: the table of the checker that all built-in providers share. */
static void attributes(void)
{
	struct fi_info *h, *i;
#define ANSWER(change, fact)                                                                             \
	do {                                                                                             \
		h = blank();                                                                             \
		h->mode = FI_CONTEXT | FI_CONTEXT2;                                                      \
		change;                                                                                  \
		test_name = #change;                                                                     \
		i = ask(NEWEST, h, 0, 0);                                                                \
		CHECK(fact);                                                                             \
		lf.freeinfo(i);                                                                          \
		lf.freeinfo(h);                                                                          \
	} while (0)
	/* Capabilities: primary ones as hinted, secondary ones all, modifiers that belong to them, FI_SOURCE on demand. */
	const uint64_t secondary = FI_MULTI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM;
	ANSWER(h->caps = 0, (i->caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV)) ==
				    (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV));
	ANSWER(h->caps = FI_MSG, i->caps == (FI_MSG | FI_SEND | FI_RECV | secondary));
	ANSWER(h->caps = FI_TAGGED | FI_SEND, i->caps == (FI_TAGGED | FI_SEND | secondary));
	ANSWER(h->caps = FI_RMA | FI_REMOTE_READ, i->caps == (FI_RMA | FI_REMOTE_READ | secondary));
	ANSWER(h->caps = FI_ATOMIC, i->caps == (FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | secondary));
	ANSWER(h->caps = FI_MSG | FI_SOURCE, i->caps & FI_SOURCE && i->rx_attr->caps & FI_SOURCE);
	ANSWER(h->caps = FI_MSG | FI_DIRECTED_RECV | FI_MULTI_RECV, !(i->caps & (FI_TAGGED | FI_SOURCE)) && i->caps & FI_DIRECTED_RECV);
	ANSWER(h->caps = FI_MSG | FI_TAGGED, (i->tx_attr->caps & (FI_RECV | FI_DIRECTED_RECV)) == 0 && !(i->rx_attr->caps & FI_SEND));
	/* Modes: none is needed. */
	ANSWER(h->mode = 0, i->mode == 0 && i->tx_attr->mode == 0 && i->rx_attr->mode == 0 && i->domain_attr->mode == 0);
	ANSWER(h->mode = ~0ULL, i->mode == 0);
	/* Registration modes: none is needed either; the two old ones where they are hinted alone. */
	static const int bits[] = {0, 0x4, 0x8, 0x10, 0x20, 0x40, 0x70, 0x80, 0x200, 0x400, 0x670};
	for (size_t k = 0; k < sizeof bits / sizeof *bits; k++)
		ANSWER(h->domain_attr->mr_mode = bits[k], i->domain_attr->mr_mode == 0);
	ANSWER(h->domain_attr->mr_mode = FI_MR_BASIC, i->domain_attr->mr_mode == FI_MR_BASIC);
	ANSWER(h->domain_attr->mr_mode = FI_MR_SCALABLE, i->domain_attr->mr_mode == FI_MR_SCALABLE);
	/* Levels and kinds: the hint's own. FI_THREAD_FID and FI_THREAD_ENDPOINT too, which the built-in providers of 2.x
	   refuse: every level is had, so whoever names an old one loses nothing. */
	static const int threading[] = {FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT};
	for (size_t k = 0; k < 5; k++)
		ANSWER(h->domain_attr->threading = threading[k], i->domain_attr->threading == (unsigned)threading[k]);
	ANSWER(h->domain_attr->threading = FI_THREAD_UNSPEC, i->domain_attr->threading == FI_THREAD_SAFE);
	ANSWER(h->domain_attr->control_progress = FI_PROGRESS_MANUAL, i->domain_attr->control_progress == FI_PROGRESS_MANUAL);
	ANSWER(h->domain_attr->data_progress = FI_PROGRESS_UNSPEC, i->domain_attr->data_progress == FI_PROGRESS_MANUAL);
	/* "Unified", of 2.x, where the second member is called "progress" and means both. */
	ANSWER(h->domain_attr->control_progress = 3, i->domain_attr->control_progress == 3 && i->domain_attr->data_progress == FI_PROGRESS_MANUAL);
	ANSWER(h->domain_attr->data_progress = 3, i->domain_attr->data_progress == 3 && i->domain_attr->control_progress == 3);
	ANSWER(h->domain_attr->data_progress = FI_PROGRESS_MANUAL, i->domain_attr->control_progress == FI_PROGRESS_MANUAL);
	ANSWER(h->domain_attr->control_progress = FI_PROGRESS_MANUAL; h->domain_attr->data_progress = 3,
	       i->domain_attr->control_progress == FI_PROGRESS_MANUAL && i->domain_attr->data_progress == 3);
	/* All that comes is kept until its receive, with no limit to tell. */
	ANSWER(h->rx_attr->total_buffered_recv = 1 << 20, i->rx_attr->total_buffered_recv == 0);
	ANSWER(h->mode = FI_BUFFERED_RECV, i->mode == 0 && i->rx_attr->mode == 0);
	/* Counts: our own most, whatever less is asked. */
	ANSWER(h->domain_attr->cq_cnt = h->domain_attr->ep_cnt = h->domain_attr->cntr_cnt = h->domain_attr->mr_cnt = 100,
	       i->domain_attr->cq_cnt >= 1 << 16 && i->domain_attr->ep_cnt >= 1 << 16 && i->domain_attr->cntr_cnt >= 1 << 16 &&
		       i->domain_attr->mr_cnt >= 1 << 16);
	ANSWER(h->domain_attr->max_ep_tx_ctx = h->domain_attr->max_ep_rx_ctx = 1, i->domain_attr->max_ep_stx_ctx == 0 && i->domain_attr->max_ep_srx_ctx == 0);
	ANSWER(h->domain_attr->av_type = FI_AV_MAP, i->domain_attr->av_type == FI_AV_MAP);
	ANSWER(h->domain_attr->av_type = FI_AV_TABLE, i->domain_attr->av_type == FI_AV_TABLE);
	ANSWER(h->domain_attr->resource_mgmt = FI_RM_ENABLED, i->domain_attr->resource_mgmt == FI_RM_ENABLED);
	ANSWER(h->domain_attr->resource_mgmt = FI_RM_DISABLED, i->domain_attr->resource_mgmt == FI_RM_DISABLED);
	ANSWER(h->domain_attr->resource_mgmt = FI_RM_UNSPEC, i->domain_attr->resource_mgmt == FI_RM_ENABLED);
	/* Sizes: the hint where less is of use, else our own most. */
	ANSWER(h->domain_attr->cq_data_size = 4, i->domain_attr->cq_data_size == 8);
	ANSWER(h->domain_attr->mr_key_size = 2, i->domain_attr->mr_key_size == 8);
	ANSWER(h->tx_attr->size = 17, i->tx_attr->size == 17);
	ANSWER(h->rx_attr->size = 4000, i->rx_attr->size == 4000);
	ANSWER(h->tx_attr->iov_limit = 1, i->tx_attr->iov_limit == 1);
	ANSWER(h->rx_attr->iov_limit = 0, i->rx_attr->iov_limit >= 4 && i->tx_attr->iov_limit >= 4 && i->tx_attr->rma_iov_limit >= 1);
	ANSWER(h->tx_attr->inject_size = 64, i->tx_attr->inject_size >= 4096);
	ANSWER(h->ep_attr->max_msg_size = 1 << 20, i->ep_attr->max_msg_size == 1 << 20);
	ANSWER(h->ep_attr->max_msg_size = 0, i->ep_attr->max_msg_size > 1ULL << 40);
	ANSWER(h->ep_attr->tx_ctx_cnt = 1, i->domain_attr->max_ep_tx_ctx == 1 && i->domain_attr->max_ep_rx_ctx == 1);
	ANSWER(h->ep_attr->max_order_waw_size = 100, i->ep_attr->max_order_raw_size == SIZE_MAX &&
							     i->ep_attr->max_order_war_size == SIZE_MAX && i->ep_attr->max_order_waw_size == SIZE_MAX);
	ANSWER(h->ep_attr->mem_tag_format = 0xff, i->ep_attr->mem_tag_format == 0xaaaaaaaaaaaaaaaaULL);
	/* Orders: all that are kept; no order of completions. */
	const uint64_t orders = FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
	ANSWER(h->tx_attr->msg_order = 0, (i->tx_attr->msg_order & orders) == orders && (i->rx_attr->msg_order & FI_ORDER_SAS));
	ANSWER(h->tx_attr->msg_order = FI_ORDER_SAS, i->tx_attr->comp_order == 0 && i->rx_attr->comp_order == 0);
	/* Flags of operations: echoed. */
	static const uint64_t flags[] = {0, FI_COMPLETION, FI_INJECT, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE,
					 FI_COMPLETION | FI_DELIVERY_COMPLETE};
	for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
		ANSWER(h->tx_attr->op_flags = flags[k], i->tx_attr->op_flags == flags[k]);
	ANSWER(h->rx_attr->op_flags = FI_COMPLETION | FI_MULTI_RECV, i->rx_attr->op_flags == (FI_COMPLETION | FI_MULTI_RECV));
	/* Names: our own are taken back. */
	h = ask(NEWEST, NULL, 0, 0);
	char *fabric = strdup(h->fabric_attr->name), *domain = strdup(h->domain_attr->name);
	lf.freeinfo(h);
	ANSWER(h->fabric_attr->name = strdup(fabric), !strcmp(i->fabric_attr->name, fabric));
	ANSWER(h->domain_attr->name = strdup(domain), !strcmp(i->domain_attr->name, domain));
	free(fabric);
	free(domain);
	/* An answer tells one thing only of what it is about. */
	ANSWER(h->ep_attr->type = FI_EP_RDM, i->ep_attr->type == FI_EP_RDM && i->ep_attr->protocol && i->addr_format != FI_FORMAT_UNSPEC);
	test_name = "the name of the provider";
	i = ask(NEWEST, NULL, 0, 0);
	EQUAL(strcmp(i->fabric_attr->prov_name, "isthmus"), 0); /* the core's doing: no prefix */
	CHECK(i->fabric_attr->prov_version && i->fabric_attr->api_version == NEWEST);
	lf.freeinfo(i);
}

/* What Intel MPI asks: first with version 0, then with what it was told. */
static void intel_mpi(void)
{
	test_name = "what Intel MPI asks";
	struct fi_info *first = ask(0, NULL, 0, 0);
	CHECK(first->domain_attr->mr_mode == 0 || first->domain_attr->mr_mode == FI_MR_SCALABLE || first->domain_attr->mr_mode == FI_MR_BASIC);
	struct fi_info *h = blank();
	h->caps = first->caps;
	h->mode = FI_CONTEXT | FI_CONTEXT2 | FI_ASYNC_IOV | FI_RX_CQ_DATA;
	h->domain_attr->mode = 1ULL << 53; /* FI_RESTRICTED_COMP */
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->control_progress = h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->domain_attr->av_type = FI_AV_TABLE;
	h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->op_flags = h->rx_attr->op_flags = FI_COMPLETION;
	h->ep_attr->type = FI_EP_RDM;
	struct fi_info *i = ask(FI_VERSION(1, 5), h, 0, 0);
	EQUAL(i->domain_attr->threading, FI_THREAD_DOMAIN);
	EQUAL(i->domain_attr->mr_mode, 0);
	lf.freeinfo(i);
	h->domain_attr->threading = FI_THREAD_COMPLETION; /* I_MPI_THREAD_SPLIT */
	i = ask(FI_VERSION(1, 5), h, 0, 0);
	EQUAL(i->domain_attr->threading, FI_THREAD_COMPLETION);
	lf.freeinfo(i);
	lf.freeinfo(h);
	lf.freeinfo(first);
}

/* What Open MPI 4 asks: no FI_MSG, and registration modes of 0 and 0x70. */
static void open_mpi_4(void)
{
	test_name = "what Open MPI 4 asks";
	struct fi_info *h = blank();
	h->caps = FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->av_type = FI_AV_MAP;
	h->domain_attr->cq_data_size = 4;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->op_flags = h->rx_attr->op_flags = FI_COMPLETION;
	struct fi_info *i = ask(FI_VERSION(1, 5), h, 0, 0);
	CHECK(!(i->caps & FI_MSG) && i->caps & FI_TAGGED && i->caps & FI_DIRECTED_RECV);
	lf.freeinfo(i);
	h->caps = FI_RMA | FI_ATOMIC;
	h->domain_attr->mr_mode = 0x70;
	h->domain_attr->av_type = FI_AV_UNSPEC;
	h->domain_attr->threading = FI_THREAD_UNSPEC;
	h->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	i = ask(FI_VERSION(1, 5), h, 0, 0);
	EQUAL(i->domain_attr->mr_mode, 0);
	EQUAL(i->tx_attr->op_flags, FI_DELIVERY_COMPLETE);
	lf.freeinfo(i);
	lf.freeinfo(h);
}

/* Every pointer of every table may be called without a look at it, but for those that libfabric checks itself. */
static void tables(void)
{
	test_name = "tables";
	struct fi_info *i = ask(NEWEST, NULL, 0, 0);
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_ep *ep;
	struct fid_mr *mr;
	struct fid_eq *eq;
	void *ops;
	struct fi_av_attr aa = {.type = FI_AV_TABLE, .count = 10};
	struct fi_cq_attr ca = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_cntr_attr na = {.events = FI_CNTR_EVENTS_COMP};
	struct fi_eq_attr ea = {.wait_obj = FI_WAIT_UNSPEC};
	EQUAL(lf.fabric(i->fabric_attr, &fabric, NULL), 0);
	EQUAL(fi_domain(fabric, i, &domain, &ops), 0);
	CHECK(domain->fid.context == &ops);
	EQUAL(fi_av_open(domain, &aa, &av, NULL), 0);
	EQUAL(fi_cq_open(domain, &ca, &cq, NULL), 0);
	EQUAL(fi_cntr_open(domain, &na, &cntr, NULL), 0);
	EQUAL(fi_endpoint(domain, i, &ep, NULL), 0);
	EQUAL(fi_eq_open(fabric, &ea, &eq, NULL), 0);
	EQUAL(fi_mr_reg(domain, &i, sizeof i, FI_REMOTE_READ, 0, 1, 0, &mr, NULL), 0);
	const struct {
		const void *table;
		size_t least;
		unsigned long long absent; /* bits of places that may be null */
	} all[] = {
		/* tostr and ops_set are looked at by libfabric */
		{fabric->fid.ops, 40, 0x60}, {domain->fid.ops, 40, 0x60}, {av->fid.ops, 40, 0x60}, {cq->fid.ops, 40, 0x60},
		{cntr->fid.ops, 40, 0x60}, {ep->fid.ops, 40, 0x60}, {mr->fid.ops, 40, 0x60}, {eq->fid.ops, 40, 0x60},
		{fabric->ops, 48, 0x40},
		{domain->ops, 72, 0xe00}, /* query_atomic, query_collective, endpoint2 */
		{domain->mr, 32, 0},
		{av->ops, 56, 0x780}, /* av_set and authorization keys */
		{cq->ops, 64, 0}, {cntr->ops, 48, 0xc0}, {eq->ops, 48, 0},
		{ep->ops, 64, 0}, {ep->cm, 72, 0x200}, {ep->msg, 80, 0}, {ep->rma, 80, 0}, {ep->tagged, 80, 0}, {ep->atomic, 112, 0},
	};
	for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
		const uint64_t *t = all[k].table;
		CHECK(t && t[0] >= all[k].least);
		for (size_t w = 1; w < t[0] / 8; w++)
			if (!t[w] && !(all[k].absent >> w & 1))
				FAIL("table %zu: entry %zu is null", k, w);
	}
	/* What is not offered says so. */
	EQUAL(fi_open_ops(&domain->fid, "elsewhere", 0, &ops, NULL), -FI_ENOSYS);
	EQUAL(fi_open_ops(&ep->fid, "elsewhere", 0, &ops, NULL), -FI_ENOSYS);
	struct fid_ep *other;
	struct fid_stx *stx;
	CHECK(fi_scalable_ep(domain, i, &other, NULL) < 0);
	EQUAL(fi_srx_context(domain, NULL, &other, NULL), -FI_ENOSYS);
	EQUAL(fi_stx_context(domain, NULL, &stx, NULL), -FI_ENOSYS);
	CHECK(fi_connect(ep, &i, NULL, 0) < 0 && fi_accept(ep, NULL, 0) < 0 && fi_shutdown(ep, 0) < 0);
	size_t len = sizeof ops;
	CHECK(fi_getpeer(ep, &ops, &len) < 0 && fi_tx_size_left(ep) < 0);
	CHECK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &len, sizeof len) < 0);
	EQUAL(fi_close(&mr->fid), 0);
	EQUAL(fi_close(&ep->fid), 0);
	EQUAL(fi_close(&cntr->fid), 0);
	EQUAL(fi_close(&cq->fid), 0);
	EQUAL(fi_close(&av->fid), 0);
	EQUAL(fi_close(&eq->fid), 0);
	EQUAL(fi_close(&domain->fid), 0);
	EQUAL(fi_close(&fabric->fid), 0);
	lf.freeinfo(i);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		FAIL("usage: getinfo LIBFABRIC...");
	for (int round = 0; round < 3; round++) {
		void *libs[16];
		for (int i = 1; i < argc && i < 16; i++) {
			libs[i] = load(argv[i]);
			own_answers();
			mpich();
			open_mpi();
			open_mpi_4();
			intel_mpi();
			attributes();
			refusals();
			old_callers();
			names();
			places();
			open_objects();
			tables();
			if (round == 0)
				printf("getinfo: ok (libfabric %u.%u)\n", FI_MAJOR(lf.version()), FI_MINOR(lf.version()));
		}
		for (int i = 1; i < argc && i < 16; i++)
			EQUAL(dlclose(libs[i]), 0);
	}
	return 0;
}
